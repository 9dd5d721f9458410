"""What a check compares, how closely, and what it says when the comparison fails."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

from ropewalk.core.errors import RopewalkError

T = TypeVar("T")

# Tolerances, all absolute: values are O(1).
SAME = 1e-10  # float64, the same sums in another order: 6 digits of slack over their rounding
SHIFTED = 1e-9  # float64 at moved coordinates: angles of size 1e3 round at 1e-13, times slopes and widths
SINGLE = 3e-5  # float32 against float64: 2^-24 on logits of size 10, through a softmax over 37 keys
LOW = {torch.float32: SINGLE, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Outputs of a model dtype against float64: q' and k' round once at 2^-11 (2^-8), logits of size 4 carry that on."""
TABLE = 1e-7  # cos and sin in float32 against float64: one rounding at 2^-24 = 6e-8
DIFFERENT = 1e-6  # what two results have to differ by to be called different


class ContractError(AssertionError):
    """An encoding breaks the contract; the message names the check, the case, what was expected and what came."""


class Excluded(Exception):
    """A check does not apply to an encoding, for the reason given."""


def said(problem: BaseException) -> str:
    """Name an error and what it says, on one line."""
    text = " ".join(str(problem).split())
    return f"{type(problem).__name__}: {text[:500]}"


def require(true: bool, case: str, expected: str, got: object) -> None:
    """Fail unless true."""
    if not true:
        raise ContractError(f"{case}: expected {expected}; got {got}")


def error_of(got: Tensor, want: Tensor) -> float:
    """Largest absolute difference; infinite for another shape, or where one is NaN or infinite."""
    if got.shape != want.shape:
        return math.inf
    if got.numel() == 0:
        return 0.0
    difference = (got.detach().double() - want.detach().double()).abs()
    return math.inf if bool(difference.isnan().any()) else float(difference.max())


def agree(got: Tensor, want: Tensor, tolerance: float, case: str, expected: str) -> None:
    """Fail unless two tensors agree."""
    error = error_of(got, want)
    shapes = "" if got.shape == want.shape else f" (shapes {tuple(got.shape)} and {tuple(want.shape)})"
    require(error <= tolerance, case, f"{expected} to within {tolerance:.0e}", f"a difference of {error:.3g}{shapes}")


def identical(got: Tensor, want: Tensor, case: str, expected: str) -> None:
    """Fail unless two tensors are equal bit for bit."""
    same = got.dtype == want.dtype and torch.equal(got, want)
    found = f"{got.dtype} against {want.dtype}, a difference of {error_of(got, want):.3g}"
    require(same, case, f"{expected}, bit for bit", found)


def finite(case: str, *tensors: Tensor, what: str = "outputs") -> None:
    """Fail unless every number of the tensors is finite."""
    require(all(bool(t.isfinite().all()) for t in tensors), case, f"finite {what}", "NaN or infinity")


def explains(why: RopewalkError, case: str) -> None:
    """Fail unless an error says more than that something went wrong."""
    require(len(str(why)) > 15, case, "an error that says why", repr(str(why)))


def attempt(case: str, run: Callable[..., T], *args: Any, **kwargs: Any) -> T | RopewalkError:
    """Return what ``run`` returns, or the error of this library it ends in; fail at any other error.

    Users can act on "head_dim must be even", and not on "The size of tensor a (15) must match ..." from inside torch.
    """
    try:
        return run(*args, **kwargs)
    except RopewalkError as why:
        explains(why, case)
        return why
    except Exception as problem:
        raise ContractError(f"{case}: expected a result or an error of ropewalk; got {said(problem)}") from problem


@contextlib.contextmanager
def failing_as(case: str, expected: str) -> Iterator[None]:
    """Report whatever a tool of torch raises as what came of a case."""
    try:
        yield
    except Exception as problem:
        raise ContractError(f"{case}: expected {expected}; got {said(problem)}") from problem
