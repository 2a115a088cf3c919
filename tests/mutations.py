"""Mutation spot checks: central lines, each broken on purpose, and the tests that must notice.

``python tests/mutations.py`` copies the project into a temporary folder, breaks one line at a time there and
runs the tests named beside it. A mutation that no test notices has *survived*, and the exit code is 1. Words
as arguments choose the mutations whose name contains one of them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Seconds after which tests of broken code count as having noticed; the tests themselves take far less.
TIMEOUT = 300


@dataclass(frozen=True)
class Mutation:
    """A line, what it is broken to, and the tests that must fail then.

    Attributes
    ----------
    name : str
        What is broken.
    file : str
        The file, relative to ``src/cofem``.
    original, broken : str
        Text that occurs once in the file, and what it is replaced by.
    tests : tuple of str
        Node ids, relative to ``tests``.
    """

    name: str
    file: str
    original: str
    broken: str
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "EM's update of alpha",
        "priors/base.py",
        "return capped_inverse(second_moment, cap)",
        "return capped_inverse(1.1 * second_moment, cap)",
        ("test_methods.py::test_em_is_the_closed_form_at_every_step",),
    ),
    Mutation(
        "second moment without part of the variance",
        "inference/problem.py",
        "            moment += variance\n",
        "            moment += 0.9 * variance\n",
        ("test_methods.py::test_em_is_the_closed_form_at_every_step",),
    ),
    Mutation(
        "CG: length of a step",
        "linalg/cg.py",
        "length = np.where(good, rz / np.where(good, curvature, 1.0), 0.0)",
        "length = 0.99 * np.where(good, rz / np.where(good, curvature, 1.0), 0.0)",
        ("test_cg.py",),
    ),
    Mutation(
        "CG: direction",
        "linalg/cg.py",
        "_scale_and_add(p, rz_new / rz, scratch)",
        "_scale_and_add(p, 0.9 * rz_new / rz, scratch)",
        ("test_cg.py",),
    ),
    Mutation(
        "CG: a system leaves the batch before it is solved",
        "linalg/cg.py",
        "done = finite & (now <= tolerance[rows])",
        "done = finite & (now <= 10 * tolerance[rows])",
        ("test_cg.py",),
    ),
    Mutation(
        "stopping measure, primal",
        "linalg/system.py",
        "divided_energy(progress.residual, self.alpha) / self.noise_var**2",
        "divided_energy(progress.residual, self.alpha) / self.noise_var",
        ("test_system.py",),
    ),
    Mutation(
        "stopping measure, dual",
        "linalg/system.py",
        "real_dot(progress.residual, progress.residual) / self.noise_var",
        "real_dot(progress.residual, progress.residual)",
        ("test_system.py",),
    ),
    Mutation(
        "self-consistent equation",
        "linalg/diagonals/self_consistent.py",
        "terms = 1 / (omega + eigenvalues)",
        "terms = 1 / (1.2 * omega + eigenvalues)",
        ("test_diagonals.py::test_fast_estimates_are_close_on_incoherent_dictionaries",),
    ),
    Mutation(
        "self-consistent equation: rounding in its slope",
        "linalg/diagonals/self_consistent.py",
        "max(-eta_slope / eta**2 - 1, 0.0)",
        "-eta_slope / eta**2 - 1",
        ("test_roots.py",),
    ),
    Mutation(
        "Newton's method: a last step that is too long",
        "linalg/roots.py",
        "if abs(step) <= close:",
        "if abs(step) <= 10 * close:",
        ("test_roots.py",),
    ),
    Mutation(
        "safeguard: the judgement of a leap",
        "inference/acceleration.py",
        "return slope_at_start + slope_at_end < 0",
        "return slope_at_start < 0",
        ("test_diagonals.py::test_a_leap_that_lowers_the_evidence_is_found",),
    ),
    Mutation(
        "safeguard: a leap that went too far is kept",
        "inference/base.py",
        "if not ended and overshot(before, _slope_at(problem, new, leap)):",
        "if False:",
        ("test_rules.py::test_leaps_that_overshoot_are_undone",),
    ),
    Mutation(
        "Woodbury: variances",
        "inference/irls.py",
        "np.maximum(g * (1 - explained), variance, out=variance)",
        "np.maximum(g * (1 - 0.99 * explained), variance, out=variance)",
        ("test_methods.py::test_irls_equals_em_step_by_step",),
    ),
    Mutation(
        "EM: variances",
        "inference/em.py",
        "variance = energy_of_columns(inverse_of_lower(factor))",
        "variance = 1.01 * energy_of_columns(inverse_of_lower(factor))",
        ("test_methods.py::test_em_is_the_closed_form_at_every_step",),
    ),
    Mutation(
        "large columns: not the root of the prior variances",
        "linalg/preconditioners/large_columns.py",
        "xp.sqrt(take(g, chosen, axis=0))",
        "take(g, chosen, axis=0)",
        ("test_large_columns.py::test_it_inverts_what_it_says",),
    ),
    Mutation(
        "large columns: rounding may make them indefinite",
        "linalg/preconditioners/large_columns.py",
        "tau = max(tau, (4 * float(np.finfo(phi.dtype).eps)) ** (2 / 3) * size)",
        "tau = max(tau, 0.0)",
        ("test_large_columns.py::test_it_is_positive_definite_at_any_scale",),
    ),
    Mutation(
        "large columns: not used by fits",
        "linalg/build.py",
        "if with_large:",
        "if False:",
        ("test_large_columns.py::test_a_fit_uses_it",),
    ),
    Mutation(
        "noise: the spread is not taken off the held-out error",
        "inference/noise/rules.py",
        "return error - min(spread, share * error)",
        "return error",
        ("test_rules.py",),
    ),
    Mutation(
        "noise: it may rise before the fit has settled",
        "inference/noise/rules.py",
        "return found if settled else min(found, problem.noise_var)",
        "return found",
        ("test_rules.py",),
    ),
    Mutation(
        "noise: degrees of freedom of the evidence",
        "inference/noise/rules.py",
        "max(problem.n_rows - gamma, 0.1 * problem.n_rows)",
        "problem.n_rows",
        ("test_rules.py",),
    ),
    Mutation(
        "gate: it never switches",
        "linalg/diagonals/gate.py",
        "if (wrong or verdict.doubtful >= ENOUGH_DOUBT) and not last_resort:",
        "if verdict.error > 1e9:",
        ("test_diagonals.py::test_gate_leaves_the_fast_estimator_on_a_dictionary_that_breaks_it",),
    ),
    Mutation(
        "gate: it switches at once",
        "linalg/diagonals/gate.py",
        "if (wrong or verdict.doubtful >= ENOUGH_DOUBT) and not last_resort:",
        "if verdict.error > -1e9:",
        ("test_diagonals.py::test_gate_keeps_the_fast_estimator_on_incoherent_dictionaries",),
    ),
    Mutation(
        "gate: the last resort is not checked",
        "linalg/diagonals/gate.py",
        "if due and current.name != Exact.name:",
        "if due and not last_resort:",
        ("test_diagonals.py::test_the_last_resort_is_checked_at_the_end",),
    ),
    Mutation(
        "combs: teeth too close",
        "operators/combs.py",
        "_comb_starts(n, r + f + 1)",
        "_comb_starts(n, r + f)",
        ("operators/test_combs.py::test_what_is_found_is_the_gram_matrix",),
    ),
    Mutation(
        "banded inverse: the ring is not closed",
        "linalg/banded_inverse.py",
        "coupling = eliminated.what_is_left(end, up, coupling) if is_ring else end",
        "coupling = end",
        ("test_banded_inverse.py::test_the_diagonal_is_that_of_the_inverse",),
    ),
    Mutation(
        "gate: no start over",
        "inference/covariance_free.py",
        "return state.carry.misled",
        "return False",
        ("test_diagonals.py::test_a_fit_that_was_misled_starts_over",),
    ),
    Mutation(
        "gate: coefficients that are zero anyway dilute the error",
        "linalg/diagonals/gate.py",
        "(x / informed for x in squared_error(ratios, weight))",
        "squared_error(ratios, weight)",
        ("test_diagonals.py::test_gate_sees_errors_in_the_few_coefficients_that_are_not_zero",),
    ),
    Mutation(
        "warm starts: a bad one is used",
        "linalg/system.py",
        "return bool((energy > FAR_OFF * along).any())",
        "return False",
        ("test_system.py::test_a_guess_far_worse_than_zero_is_not_used",),
    ),
    Mutation(
        "adjoint of Mask",
        "operators/sampling.py",
        "out[:, targets] = vectors",
        "out[:, targets[::-1]] = vectors",
        ("operators/test_market.py::test_adjoint_matches",),
    ),
    Mutation(
        "adjoint of Mask, many rows",
        "operators/sampling.py",
        "out[i, ...][targets] = vectors[i, ...]",
        "out[i, ...][targets[::-1]] = vectors[i, ...]",
        ("operators/test_sampling.py::test_large_random_masks_equal_plain_indexing",),
    ),
    Mutation(
        "rectified second moment",
        "priors/rectified.py",
        "second = s * (1 - a * excess)",
        "second = s * (1 - 0.99 * a * excess)",
        ("test_priors.py::test_rectified_moments_equal_quadrature",),
    ),
    Mutation(
        "rectified moments far below zero",
        "priors/rectified.py",
        "first[far] = sd / tail[2]",
        "first[far] = sd / tail[3]",
        (
            "test_priors.py::test_rectified_moments_equal_quadrature",
            "test_priors.py::test_rectified_moments_far_below_zero_are_those_of_an_exponential",
        ),
    ),
    Mutation(
        "checkpoint: written in place",
        "files.py",
        'part = _new_file(target.parent, suffix=f".part{target.suffix}")',
        "part = target",
        ("test_checkpoint.py::test_a_full_disk_keeps_the_last_checkpoint",),
    ),
    Mutation(
        "checkpoint: copied in place of renamed",
        "files.py",
        "os.replace(part, target)",
        "target.write_bytes(part.read_bytes())",
        ("test_checkpoint.py::test_every_method_goes_on_to_the_same_result",),
    ),
    Mutation(
        "checkpoint: the generator's state is not restored",
        "inference/stages.py",
        "self.rng.bit_generator.state = record.rng",
        "pass",
        ("test_checkpoint.py::test_every_method_goes_on_to_the_same_result",),
    ),
    Mutation(
        "near zero: not scaled together",
        "inference/base.py",
        "alpha = self._scaled_together(problem, state)",
        "alpha = None",
        ("test_wide.py::test_a_wide_fit_that_found_nothing_goes_on",),
    ),
    Mutation(
        "relaxed: all of the penalty stays",
        "inference/loop.py",
        "problem.prior.relaxation * old.alpha",
        "1.0 * old.alpha",
        ("test_priors.py::test_a_relaxed_laplace_keeps_what_the_lasso_found_at_a_share_of_the_penalty",),
    ),
    Mutation(
        "message passing: the end is not confirmed",
        "inference/covariance_free.py",
        "if carry.tau is not None and moved > limit:",
        "if False:",
        ("test_message_passing.py::test_a_mean_that_crawls_is_not_called_converged",),
    ),
    Mutation(
        "message passing: probes of sweeps that crawl count",
        "inference/covariance_free.py",
        "gave_up=True, tau=None, misled=False, **known",
        "gave_up=True, tau=None, misled=False",
        ("test_message_passing.py::test_a_mean_that_crawls_is_not_called_converged",),
    ),
    Mutation(
        "learned noise: parts of a convolution have exact variances",
        "inference/noise/held_out.py",
        "on_average = rough and circulant is not None and circulant.is_exact",
        "on_average = False",
        ("test_coherent.py::test_the_noise_of_a_convolution_needs_no_exact_variances",),
    ),
    Mutation(
        "learned noise: of many data a tenth is held out",
        "inference/noise/held_out.py",
        "share = min(self.share, max(self.enough / n_rows, FEW_HELD_OUT))",
        "share = self.share",
        ("test_joint_parts.py::test_many_data_have_few_of_them_held_out_and_need_no_second_try",),
    ),
    Mutation(
        "deflation: half of an even grid counts twice",
        "linalg/preconditioners/deflation.py",
        "np.where(entries.once[k], 0.5 * value, value)",
        "value",
        ("test_coherent.py::test_gram_matrices_of_kernels_as_large_as_the_grid",),
    ),
    Mutation(
        "deflation: what was measured near by is taken for all",
        "linalg/preconditioners/deflation.py",
        "if entries.to_check and not _is_gram_of(found, phi, kept):",
        "if False:",
        ("test_foreign_blurs.py::test_an_echo_is_not_taken_for_a_nearer_one",),
    ),
    Mutation(
        "learned noise: coefficients that none were seen to be zero of",
        "inference/noise/least_squares.py",
        "weights[0] += SEEN",
        "weights[0] += 0",
        ("test_least_squares_noise.py::test_the_noise_is_learned_where_columns_hardly_overlap",),
    ),
    Mutation(
        "learned noise: least squares without its degrees of freedom",
        "inference/noise/least_squares.py",
        "noise_var = found.left_over / found.freedom",
        "noise_var = found.left_over / problem.n_rows",
        ("test_least_squares_noise.py::test_the_residual_of_least_squares_is_that_of_the_dense_formula",),
    ),
    Mutation(
        "learned noise: tries that predict nothing go on",
        "inference/noise/second_tries.py",
        "return said < self.nothing",
        "return True",
        ("test_weak_signals.py::test_weak_signals_cost_few_steps_of_learning_the_noise",),
    ),
    Mutation(
        "learned noise: parts of local columns as small as others",
        "inference/noise/held_out.py",
        "size = max(size, ENOUGH_FOR_MEDIAN)",
        "pass",
        ("test_weak_signals.py::test_parts_of_columns_that_act_on_few_data_tell_those_that_are_far_off",),
    ),
    Mutation(
        "learned noise: second tries are never given up",
        "inference/noise/second_tries.py",
        "return falls and said <= PROMISING.get(now, math.inf) * self.wanted",
        "return True",
        ("test_joint_parts.py::test_a_second_try_that_leads_nowhere_is_given_up",),
    ),
    Mutation(
        "learned noise: parts that lose their signal stay",
        "inference/noise/joint.py",
        "if outcome.status.message != UNSETTLED:",
        "if True:",
        ("test_joint_parts.py::test_parts_whose_sweeps_do_not_settle_are_left_out",),
    ),
    Mutation(
        "banded inverse: eliminated by the inverse",
        "linalg/banded_inverse.py",
        "return block - product(half, other, adjoint=True)",
        "return block - product(left, product(self.inverse, right), adjoint=True)",
        ("test_banded_inverse.py::test_strong_signals_of_which_samples_are_missing_keep_their_digits",),
    ),
    Mutation(
        "exact methods: threads of BLAS that wait",
        "inference/stages.py",
        "with one_blas_thread() if method.wants_one_thread(problem) else nullcontext():",
        "with nullcontext():",
        ("test_joint_parts.py::test_small_exact_fits_have_one_thread_of_blas",),
    ),
    Mutation(
        "gate: doubt is never enough",
        "linalg/diagonals/gate.py",
        "wrong or verdict.doubtful >= ENOUGH_DOUBT",
        "wrong",
        ("test_message_passing.py::test_a_check_that_leaves_doubt_is_no_end",),
    ),
    Mutation(
        "learned noise: every part must settle",
        "inference/noise/joint.py",
        "return len(self.parts.kept) if found else 1",
        "return 1",
        ("test_joint_parts.py::test_a_part_that_does_not_find_its_signal_does_not_hold_up_the_others",),
    ),
    Mutation(
        "message passing: no sum of what moves by one factor",
        "linalg/message_passing.py",
        "if before_last is not None:",
        "if False:",
        ("test_message_passing.py::test_one_direction_that_does_not_fade_is_summed_up",),
    ),
    Mutation(
        "spectrum by Lanczos: weights",
        "linalg/lanczos.py",
        "return values, ritz[0] ** 2",
        "return values, np.abs(ritz[0]) / np.abs(ritz[0]).sum()",
        ("test_message_passing.py::test_the_law_has_the_moments_of_marchenko_and_pastur",),
    ),
    Mutation(
        "evidence by Lanczos: noise part of the determinant",
        "linalg/evidence.py",
        "known = n_rows * math.log(noise_var) + large.log_det + side.log_det",
        "known = large.log_det + side.log_det",
        ("test_priors.py::test_log_evidence_is_exact_where_small",),
    ),
    Mutation(
        "units: coefficients",
        "inference/problem.py",
        "return self.data / self.dictionary",
        "return self.data * self.dictionary",
        ("test_methods.py::test_units_of_data_and_dictionary_do_not_matter",),
    ),
    Mutation(
        "units: columns",
        "inference/problem.py",
        "columns[:, None]) ** power",
        "columns[:, None])",
        ("test_units_of_columns.py::test_callbacks_alpha_and_where_it_starts_are_in_the_users_units",),
    ),
    Mutation(
        "support: variances are not looked at one by one",
        "inference/covariance_free.py",
        "return replace(state, variance=checked.variance), notes",
        "return state, notes",
        ("test_support_variances.py::test_a_few_columns_that_are_alike",),
    ),
    Mutation(
        "systems that CG does not solve are not factored",
        "inference/solver.py",
        "self.factored = direct = self.can_factor and unsolved",
        "self.factored = direct = False",
        ("test_methods.py::test_small_systems_that_cg_does_not_solve_are_factored",),
    ),
    Mutation(
        "units: powers",
        "inference/problem.py",
        "factor: Any = self.coefficient**power",
        "factor: Any = self.coefficient",
        ("test_rules.py::test_every_result_is_in_the_users_units",),
    ),
    Mutation(
        "posterior samples: noise of the data",
        "posterior/posterior.py",
        "v=y - solver.phi.forward(prior) - noise)",
        "v=y - solver.phi.forward(prior))",
        ("test_posterior.py::test_samples_have_the_exact_mean_and_covariance",),
    ),
    Mutation(
        "AMP: Onsager's correction",
        "inference/amp.py",
        "(problem.y - fit + residual * spread) / (spread + problem.noise_var)",
        "(problem.y - fit) / (spread + problem.noise_var)",
        ("test_rules.py::test_messages_that_have_settled_are_the_exact_mean",),
    ),
    Mutation(
        "Seq: gain of an action",
        "inference/seq.py",
        "gains[useful] = 0.5 * (ratio - 1 - np.log(ratio))",
        "gains[useful] = 0.5 * (ratio - 1)",
        ("test_methods.py::test_seq_evidence_is_exact_and_never_decreases",),
    ),
    Mutation(
        "sums of chunks in the order in which they come",
        "operators/chunk_sums.py",
        "node = (level + 1, place // 2)",
        "node = (level, place & ~1)",
        ("test_distributed.py::test_sums_do_not_depend_on_who_adds_what",),
    ),
    Mutation(
        "chunks of a worker that was lost are not loaded again",
        "operators/cluster.py",
        "                home.future = None\n",
        "                pass\n",
        ("test_distributed.py::test_workers_that_are_killed_change_nothing",),
    ),
    Mutation(
        "weights between two products of a chunk",
        "operators/chunk_sums.py",
        "return operator.dual_gram(v, g)",
        "return operator.dual_gram(v, None)",
        ("operators/test_market.py::test_dual_gram_has_weights_between",),
    ),
)


def occurrences(mutation: Mutation) -> int:
    """Return how often the original is found in its file: once, or the table is out of date."""
    return (ROOT / "src" / "cofem" / mutation.file).read_text().count(mutation.original)


def copy_project(folder: Path) -> None:
    """Copy what the tests need."""
    unwanted = shutil.ignore_patterns("__pycache__", ".*_cache")
    for name in ("src", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    shutil.copy(ROOT / "pyproject.toml", folder)


def run_tests(folder: Path, tests: tuple[str, ...]) -> str:
    """Run tests on the copy and return ``"pass"``, ``"fail"``, or what else happened."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), "1")
    environment = os.environ | threads | {"PYTHONPATH": str(folder / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    nodes = [str(folder / "tests" / test) for test in tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:cov", *nodes]
    try:
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return "fail"
    if done.returncode in (0, 1):
        return ("pass", "fail")[done.returncode]
    last_words = (done.stdout + done.stderr).strip().splitlines()[-1:] or [""]
    return f"pytest ended with code {done.returncode}: {last_words[0]}"


def check(folder: Path, mutation: Mutation) -> str:
    """Return ``"killed"``, ``"survived"`` or what went wrong."""
    path = folder / "src" / "cofem" / mutation.file
    whole = path.read_text()
    if whole.count(mutation.original) != 1:
        return "the original does not occur once"
    path.write_text(whole.replace(mutation.original, mutation.broken))
    try:
        return {"fail": "killed", "pass": "survived"}.get(answer := run_tests(folder, mutation.tests), answer)
    finally:
        path.write_text(whole)


def main(words: list[str]) -> int:
    """Check the mutations and print a line for each; return the exit code."""
    chosen = [m for m in MUTATIONS if not words or any(word in m.name for word in words)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_project(folder)
        # Tests that fail anyway, or that test another copy, would prove nothing.
        found = subprocess.run(
            [sys.executable, "-c", "import cofem; print(cofem.__file__)"],
            env=os.environ | {"PYTHONPATH": str(folder / "src")},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        if not Path(found.strip()).is_relative_to(folder.resolve()):
            print(f"the tests would import {found.strip()}, not the copy")
            return 1
        every = tuple(dict.fromkeys(test for mutation in chosen for test in mutation.tests))
        if (answer := run_tests(folder, every)) != "pass":
            print(f"the tests do not pass as it is: {answer}")
            return 1
        outcomes = []
        for mutation in chosen:
            start = time.monotonic()
            outcomes.append(check(folder, mutation))
            print(f"{outcomes[-1]:9} {time.monotonic() - start:4.0f} s  {mutation.name}", flush=True)
    killed = outcomes.count("killed")
    print(f"{killed} of {len(chosen)} mutations killed")
    return 0 if killed == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
