"""Files of posteriors and checkpoints: operators are recognised, and nothing odd gets in.

Whatever is changed in a valid archive, loading it gives a posterior that can be used, or one line that names
the file; see also `test_cli_safety.py`, where bytes are changed.
"""

from __future__ import annotations

import contextlib
import copy
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pylops
import pytest
import scipy.sparse
from scipy.sparse.linalg import aslinearoperator
from typer.testing import CliRunner

import cofem
from cofem.cli import app
from cofem.operators import DCT, Dense, Gradient, Mask, Operator
from cofem.operators.fingerprint import known_by

RNG = np.random.default_rng(0)
PHI = RNG.standard_normal((20, 31))
Y = PHI[:, 3] - 2 * PHI[:, 9] + 0.05 * RNG.standard_normal(20)


def another(matrix: np.ndarray, how: str) -> np.ndarray:
    """Return a matrix that is almost the same."""
    other = matrix.copy()
    if how == "another row":
        other[7] = np.random.default_rng(1).standard_normal(matrix.shape[1])
    elif how == "another entry":
        other[7, 9] += 1
    elif how == "two columns exchanged":
        other[:, [3, 4]] = other[:, [4, 3]]
    elif how == "two rows exchanged":
        other[[3, 4]] = other[[4, 3]]
    elif how == "another sign":
        other = -other
    elif how == "another unit":
        other *= 1.001
    elif how == "backwards":
        other = other[:, ::-1]
    return other


# --- operators ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_the_operator_of_the_fit_is_known_in_any_form(precision: str, tmp_path: Path) -> None:
    path = tmp_path / "fit.npz"
    post = cofem.fit(PHI.astype(precision), Y.astype(precision), noise_std=0.05, rng=0)
    post.save(path)
    for same in (
        PHI,
        PHI.astype(precision),
        np.asfortranarray(PHI),
        scipy.sparse.csr_array(PHI),
        aslinearoperator(PHI),
        pylops.MatrixMult(PHI),
        Dense(PHI) @ DCT(31) @ DCT(31).T,
    ):
        assert cofem.load(path, operator=same).operator is not None


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize(
    "how",
    [
        "another row",
        "another entry",
        "two columns exchanged",
        "two rows exchanged",
        "another sign",
        "another unit",
        "backwards",
    ],
)
def test_another_operator_of_the_same_shape_is_refused(how: str, precision: str, tmp_path: Path) -> None:
    path = tmp_path / "fit.npz"
    post = cofem.fit(PHI.astype(precision), Y.astype(precision), noise_std=0.05, rng=0)
    post.save(path)
    other = another(PHI, how)
    with pytest.raises(ValueError, match=r"^operator must be that of the fit in '.*fit.npz'.*check=False"):
        cofem.load(path, operator=other)
    taken = cofem.load(path, operator=other, check=False)
    assert taken.operator is not None
    taken.save(path)  # what the fit had is what counts
    with pytest.raises(ValueError, match=r"^operator must be that of the fit .*"):
        cofem.load(path, operator=other)
    cofem.load(path, operator=PHI)


@pytest.mark.parametrize("kind", ["complex", "data real", "data complex"])
def test_complex_operators_are_known(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "fit.npz"
    Phi = PHI if kind == "data complex" else PHI + 1j * PHI[::-1]
    cofem.fit(Phi, Y if kind == "data real" else Y + 1j * Y[::-1], noise_std=0.05, rng=0).save(path)
    cofem.load(path, operator=aslinearoperator(Phi))
    with pytest.raises(ValueError, match=r"^operator must be that of the fit .*"):
        cofem.load(path, operator=Phi * np.exp(0.001j))


def test_one_sample_in_half_a_million_is_noticed() -> None:
    """A product of norms would change by a millionth only."""
    rows = np.arange(0, 10**6, 2)
    others = rows.copy()
    others[1234] += 1
    like = np.zeros(1)
    one, other = (known_by(Mask(kept, 10**6) @ DCT(10**6).T, like) for kept in (rows, others))
    assert one.distance(other) > 1e-4
    assert not one.agrees(other)


def test_operators_of_tasks_and_of_analysis_are_known(tmp_path: Path) -> None:
    path, rows = tmp_path / "fit.npz", Gradient(31)
    cofem.fit(PHI, Y, noise_std=0.05, analysis=rows, rng=0).save(path)
    cofem.load(path, operator=PHI, analysis=rows.to_dense())
    with pytest.raises(ValueError, match=r"^analysis must be that of the fit .*"):
        cofem.load(path, operator=PHI, analysis=-rows.to_dense())
    cofem.load(path, operator=PHI, analysis=-rows.to_dense(), check=False)
    cofem.fit(PHI, np.stack([Y, -Y], axis=1), noise_std=0.05, rng=0).save(path)
    assert cofem.load(path, operator=PHI).task(1).sample(2, rng=0).shape == (2, 31)
    with pytest.raises(ValueError, match=r"^operator must be that of the fit .*"):
        cofem.load(path, operator=-PHI)
    dictionaries = [PHI, -PHI[:15]]
    cofem.fit(dictionaries, [Y, Y[:15]], noise_std=0.05, prior=cofem.MultiTask(), rng=0).save(path)
    assert cofem.load(path, operator=dictionaries).task(1).sample(2, rng=0).shape == (2, 31)
    with pytest.raises(ValueError, match=r"^operator must be that of the fit .*"):
        cofem.load(path, operator=[PHI, PHI[:15]])
    with pytest.raises(ValueError, match=r"^operator must be one for all tasks .* 2, got 1"):
        cofem.load(path, operator=[PHI])


def test_what_was_loaded_without_its_operator_is_saved_with_its_fingerprint(tmp_path: Path) -> None:
    path = tmp_path / "fit.npz"
    cofem.fit(PHI, Y, noise_std=0.05, rng=0).save(path)
    cofem.load(path).save(path)
    cofem.load(path, operator=PHI)
    with pytest.raises(ValueError, match=r"^operator must be that of the fit .*"):
        cofem.load(path, operator=-PHI)


class Counted(Operator):
    """A dictionary that counts products, and fails when it is told to."""

    def __init__(self) -> None:
        super().__init__(PHI.shape)
        self.products, self.gone = 0, False

    def _times(self, x: np.ndarray, matrix: np.ndarray) -> np.ndarray:
        self.products += 1
        if self.gone:
            raise ConnectionError("the detector\nis gone")
        return x @ matrix

    def _forward(self, x: np.ndarray) -> np.ndarray:
        return self._times(x, PHI.T)

    def _adjoint(self, y: np.ndarray) -> np.ndarray:
        return self._times(y, PHI)


def test_saving_takes_no_products_and_no_failing_operator_keeps_a_result_from_the_disk(
    tmp_path: Path,
) -> None:
    path, Phi = tmp_path / "fit.npz", Counted()
    post = cofem.fit(Phi, Y, noise_std=0.05, rng=0)
    before, Phi.gone = Phi.products, True
    post.save(path)
    assert Phi.products == before
    cofem.load(path, operator=PHI)
    with pytest.raises(
        ValueError, match=r"^operator could not be compared.*the detector is gone; check=False"
    ):
        cofem.load(path, operator=Phi)
    cofem.load(path, operator=Phi, check=False)
    unknown = Counted()
    unknown.gone = True
    cofem.Posterior(**{**vars(post), "operator": unknown}).save(path)
    assert cofem.load(path, operator=-PHI).operator is not None  # nothing is known to compare with


# --- odd content --------------------------------------------------------------------------------------


def posteriors() -> dict[str, tuple[cofem.Posterior, dict[str, Any]]]:
    Y2, cut, of_phi = np.stack([Y, 2 * Y], axis=1), [PHI, PHI[:15]], dict(operator=PHI)
    joint, settings = cofem.MultiTask(), dict(rng=0, max_iter=5, noise_std=0.05)
    return {
        "weights": (cofem.fit(PHI, Y, **settings | dict(noise_std=np.linspace(0.05, 0.1, 20))), of_phi),
        "learned": (cofem.fit(PHI, Y, rng=0, max_iter=5), of_phi),
        "nonnegative": (cofem.fit(PHI, Y, nonnegative=True, **settings), of_phi),
        "joint": (cofem.fit(PHI, Y2, prior=joint, **settings), of_phi),
        "tasks": (cofem.fit(PHI, Y2, **settings), of_phi),
        "lists": (cofem.fit(cut, [Y, Y[:15]], prior=joint, **settings), dict(operator=cut)),
        "analysis": (
            cofem.fit(PHI, Y, analysis=Gradient(31), **settings),
            of_phi | dict(analysis=Gradient(31)),
        ),
    }


ODD: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    float("nan"),
    float("inf"),
    10**400,
    "x",
    "",
    "two\nlines",
    [],
    [[]],
    {},
]
GONE = object()


def entries(tree: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Give the places of all that is in a header."""
    if place:
        yield place
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield from entries(tree[key], (*place, key))


def changed(tree: Any, place: tuple[Any, ...], value: Any) -> Any:
    """Return a header with one entry that is another, or gone."""
    tree = part = copy.deepcopy(tree)
    for key in place[:-1]:
        part = part[key]
    if value is GONE:
        del part[place[-1]]
    else:
        part[place[-1]] = value
    return tree


def odd_arrays(values: np.ndarray) -> Iterator[np.ndarray]:
    """Give arrays that are not what they were."""
    yield from (np.zeros(0), np.array(1.0), values[..., None], values[..., None, None], np.array("x"))
    yield from (values.astype(str), np.zeros(values.shape, "V8"), np.zeros(values.shape, "M8[s]"))
    if values.ndim:
        yield from (values[..., :-1], np.concatenate([values, values], axis=-1), np.ones(values.shape, bool))
    if values.dtype.kind in "fc" and values.size:
        for number in (np.nan, np.inf, -1.0):
            other = values.copy()
            other.flat[-1] = number
            yield other
        yield from (
            values.astype(np.complex128) * 1j,
            values.astype(np.longdouble),
            values.astype(np.float16),
        )


def odd_files(path: Path, every: int = 1, older: bool = False) -> Iterator[str]:
    """Change a file in every way, or in one of `every`; `older` files do not say what was written in them."""
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays.pop("header")))
    if older:
        for name in ("arrays", "seal", "fingerprints"):
            header.pop(name, None)

    ways = [(f"{place} = {value}", place, value) for place in entries(header) for value in (*ODD, GONE)]
    for what, place, value in ways[::every]:
        np.savez(path, header=np.array(json.dumps(changed(header, place, value))), **arrays)
        yield what
    for name, values in arrays.items():
        for i, other in enumerate([None, *odd_arrays(values)]):
            if zlib.crc32(f"{name} {i}".encode()) % every == 0:
                rest = {kept: part for kept, part in arrays.items() if kept != name}
                rest |= {} if other is None else {name: other}
                np.savez(path, header=np.array(json.dumps(header)), **rest)
                yield f"no {name}" if other is None else f"{name} of {other.dtype}, {other.shape}"


def use(post: cofem.Posterior, path: Path) -> None:
    """Do what one does with a posterior; it may say that it cannot, in a `ValueError`."""
    assert repr(post)
    assert str(post.status)
    assert post.std.shape == post.mean.shape
    assert post.credible_interval()[0].shape == post.mean.shape
    again = path.with_name("again.npz")
    post.save(again)
    cofem.load(again)
    for call in (post.support, lambda: post.sample(2, rng=0), lambda: post.predict(return_std=True)):
        with contextlib.suppress(ValueError):
            call()


def is_used_or_refused(call: Any, path: Path) -> bool:
    """Tell whether a file could be read; it must be usable then, and refused in one line otherwise."""
    try:
        found = call()
    except ValueError as error:
        (line,) = str(error).splitlines()
        assert str(path) in line
        return False
    use(found, path)
    return True


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("older", [False, True], ids=["new", "older"])
@pytest.mark.parametrize("every", [97, pytest.param(1, marks=pytest.mark.nightly)])
def test_odd_posteriors_are_refused_in_one_line(every: int, older: bool, tmp_path: Path) -> None:
    path = tmp_path / "fit.npz"
    for name, (post, operators) in posteriors().items():
        post.save(path)
        assert is_used_or_refused(lambda given=operators: cofem.load(path, **given), path), name
        for what in odd_files(path, every, older):
            try:
                is_used_or_refused(lambda given=operators: cofem.load(path, **given), path)
            except Exception as error:
                raise AssertionError(f"{name}: {what}") from error


SILENT = {
    "mean that is no vector": ("mean", lambda values: values[:, None, None]),
    "variance of another length": ("variance", lambda values: values[:-1]),
    "variance that is negative": ("variance", np.negative),
    "alpha that is no number": ("alpha", lambda values: values * np.nan),
    "words": ("mean", lambda values: values.astype(str)),
    "weights of another length": ("weights", lambda values: values[:-1]),
    "half of the Gaussian": ("gaussian_mean", None),
    "noise that is a word": ("noise_std", "x"),
    "noise of nothing": ("noise_std", 0.0),
    "method without a name": ("method", None),
    "status that is not known": ("status", ["done", "well", []]),
    "status without notes": ("status", ["converged", "well"]),
    "scale that is negative": ("scale", -1.0),
    "tasks that are none": ("tasks", [{}]),
}


@pytest.mark.parametrize("what", SILENT)
def test_odd_content_of_older_files_is_named(what: str, tmp_path: Path) -> None:
    """Of files that do not say what was written in them."""
    path = tmp_path / "fit.npz"
    name, value = SILENT[what]
    nonnegative = name.startswith("gaussian")
    post = cofem.fit(PHI, Y, noise_std=np.full(20, 0.05), nonnegative=nonnegative, rng=0)
    post.save(path)
    with np.load(path) as file:
        arrays = dict(file)
    header = json.loads(str(arrays.pop("header")))
    del header["arrays"], header["seal"], header["fingerprints"]
    header |= {"version": 2, "status": header["status"][:3]}  # as it was before
    np.savez(path, header=np.array(json.dumps(header)), **arrays)
    assert cofem.load(path, operator=-PHI).status.message == post.status.message
    if name in arrays:
        arrays = {other: part for other, part in arrays.items() if other != name or value is not None}
        arrays |= {name: value(arrays[name])} if value is not None else {}
    else:
        header[name] = value
    np.savez(path, header=np.array(json.dumps(header)), **arrays)
    with pytest.raises(ValueError, match=rf"^path '.*fit.npz' is damaged: .*{name}") as caught:
        cofem.load(path)
    assert len(str(caught.value).splitlines()) == 1


def test_a_file_says_which_of_its_arrays_is_not_what_was_written(tmp_path: Path) -> None:
    path = tmp_path / "fit.npz"
    cofem.fit(PHI, Y, noise_std=np.full(20, 0.05), rng=0).save(path)
    with np.load(path) as file:
        arrays = dict(file)
    np.savez(path, **arrays | {"mean": arrays["mean"] + 1e-12})
    with pytest.raises(ValueError, match="is damaged: mean is not what was written"):
        cofem.load(path)
    del arrays["weights"]  # others would be taken for equal
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match="is damaged: weights is missing"):
        cofem.load(path)


def test_warnings_of_a_status_come_back(tmp_path: Path) -> None:
    path = tmp_path / "fit.npz"
    post = cofem.fit(PHI, Y, noise_std=0.05, rng=0)
    doubted = cofem.Status(cofem.StatusCode.CONVERGED, "done", ("a note",), ("a doubt", "another"))
    cofem.Posterior(**{**vars(post), "status": doubted}).save(path)
    assert cofem.load(path).status == doubted


CHECKPOINTS: dict[str, dict[str, Any]] = {
    "em": dict(method="em", noise_std=0.05),
    "cofem": dict(method="cofem", noise_std=0.05),
    "learned": {},
    "analysis": dict(analysis=Gradient(31), noise_std=0.05),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [67, pytest.param(1, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_odd_checkpoints_are_refused_in_one_line(kind: str, every: int, tmp_path: Path) -> None:
    path, settings = tmp_path / "run.npz", dict(rng=0, max_iter=3) | CHECKPOINTS[kind]
    first = cofem.fit(PHI, Y, checkpoint=path, **settings)
    np.testing.assert_array_equal(cofem.fit(PHI, Y, resume=path, **settings).mean, first.mean)
    whole = path.read_bytes()
    for what in odd_files(path, every):
        try:
            if not is_used_or_refused(lambda: cofem.fit(PHI, Y, resume=path, **settings), path):
                is_used_or_refused(lambda: cofem.fit(PHI, 2 * Y, checkpoint=path, **settings), path)
        except Exception as error:
            raise AssertionError(what) from error
    path.write_bytes(whole)
    np.testing.assert_array_equal(cofem.fit(PHI, Y, resume=path, **settings).mean, first.mean)


@pytest.mark.parametrize("entry", ["rng", "fingerprints", "finished", "current", "seal", "version"])
@pytest.mark.parametrize("value", [None, 3, "x", [], {"dict": [["x", 3]]}, {"number": "a0"}], ids=str)
def test_recover_says_in_one_line_what_it_cannot_resume(
    entry: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("y.npy", Y)
    np.save("phi.npy", PHI)
    cofem.fit(PHI, Y, noise_std=0.05, method="em", max_iter=3, checkpoint="run.npz")
    with np.load("run.npz") as file:
        arrays = dict(file)
    header = json.loads(str(arrays.pop("header")))
    if entry in header:
        header[entry] = value
    else:
        parts = header["contents"]["dict"]
        parts[[name for name, _ in parts].index(entry)][1] = value
    np.savez("run.npz", header=np.array(json.dumps(header)), **arrays)
    command = ["recover", "--data", "y.npy", "--operator", "dense(phi.npy)", "--noise-std", "0.05"]
    for more in (["--resume", "run.npz"], ["--checkpoint", "run.npz"]):
        done = CliRunner().invoke(app, [*command, "--method", "em", "--max-iter", "3", *more])
        assert done.exit_code == 2, done.output
        (line,) = done.stderr.strip().splitlines()
        assert "run.npz" in line
