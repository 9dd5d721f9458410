"""The contract of an encoding, as checks that can be run on any of them.

    import ropewalk as rw

    rw.testing.check_encoding(MyEncoding, rw.catalog.Traits(relative=True, ...))

One call runs every check and raises `ContractError` at the first that fails, saying which, in what case, what was
expected and what was measured. With pytest, one test a check reads better:

    @pytest.mark.parametrize("check", rw.testing.checks())
    def test_contract(check):
        for name, why in rw.testing.check_encoding(MyEncoding, TRAITS, checks=[check]).items():
            pytest.skip(why)

The problems are small: ``BATCH`` rows, ``HEADS`` query heads that share ``KV_HEADS`` key heads, width ``HEAD_DIM``, a
layer's input of width ``HIDDEN``. A factory gets those of the keywords ``head_dim``, ``num_heads``, ``num_kv_heads`` and
``hidden_size`` that it takes; one that takes none must make an encoding of these sizes. Parameters are disturbed after
construction, so that what starts at zero is seen too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ropewalk.catalog import Record, Traits
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError
from ropewalk.testing import (
    batches,
    compiling,
    composition,
    decoding,
    errors,
    modules,
    numerics,
    precision,
)
from ropewalk.testing import (
    traits as claims,
)
from ropewalk.testing.compare import ContractError, Excluded, said
from ropewalk.testing.subjects import BATCH, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, Sample, Subject, subject

__all__ = [
    "BATCH",
    "CHECKS",
    "HEADS",
    "HEAD_DIM",
    "HIDDEN",
    "KV_HEADS",
    "SLOW",
    "ContractError",
    "Excluded",
    "Sample",
    "Subject",
    "check_encoding",
    "checks",
    "subject",
]

# In the order in which they run: from the plain problem over decoding and dtypes to what is claimed and refused. The
# first failure is reported, and this order makes it the most telling one.
_IN_ORDER: tuple[Callable[[Subject], None], ...] = (
    numerics.check_backends,
    compiling.check_flex,
    numerics.check_result,
    modules.check_memory,
    composition.check_nothing_captured,
    batches.check_grouped_heads,
    batches.check_strides,
    batches.check_short,
    batches.check_batch,
    batches.check_padding,
    batches.check_packing,
    decoding.check_decoding,
    decoding.check_decoding_counted,
    decoding.check_decoding_padded,
    decoding.check_layers,
    decoding.check_stored,
    decoding.check_snapshot,
    decoding.check_beams,
    decoding.check_crop,
    decoding.check_edit,
    composition.check_parts,
    composition.check_queries_apart,
    batches.check_heads_permuted,
    numerics.check_masks,
    precision.check_low_precision,
    precision.check_casts,
    precision.check_autocast,
    precision.check_precision,
    modules.check_copies,
    modules.check_meta,
    compiling.check_compile,
    compiling.check_inductor,
    compiling.check_export,
    numerics.check_gradients,
    composition.check_combinators,
    composition.check_per_head,
    composition.check_after_rope,
    claims.check_relative,
    claims.check_norm_preserving,
    claims.check_content_dependent,
    claims.check_linear_attention,
    claims.check_max_position,
    claims.check_real_positions,
    claims.check_causal,
    errors.check_errors,
    errors.check_sizes,
    modules.check_draws,
)
CHECKS = {check.__name__.removeprefix("check_"): check for check in _IN_ORDER}
SLOW = {"flex", "inductor"}
"""Checks that call compilers for minutes; they run only when asked for by name."""


def checks(slow: bool = False) -> tuple[str, ...]:
    """Names of the checks, in order; with ``slow`` also those that call compilers for minutes."""
    return tuple(name for name in CHECKS if slow or name not in SLOW)


def check_encoding(
    factory: Callable[..., Encoding] | Record,
    traits: Traits | None = None,
    *,
    checks: Sequence[str] | None = None,
    positions: Sample | None = None,
    seed: int = 0,
) -> dict[str, str]:
    """Run the contract on an encoding.

    Args:
        factory: makes it; a class, a function, or a record of the catalog. It gets the shape keywords it takes.
        traits: what it claims; a record brings its own. None: claims are not checked.
        checks: names from `checks`; None: all that are quick.
        positions: ``sample(batch, seq, generator) -> Positions``, for encodings of other domains than those known.
        seed: of everything random.

    Returns:
        The checks that do not apply, each with the reason.

    Raises:
        ContractError: at the first check that fails.
    """
    tested = subject(factory, traits, positions=positions, seed=seed)
    excluded = {}
    for name in [c for c in CHECKS if c not in SLOW] if checks is None else checks:
        if name not in CHECKS:
            raise ConfigError(f"no check is called {name!r}; there are {', '.join(CHECKS)}")
        try:
            CHECKS[name](tested)
        except Excluded as reason:
            excluded[name] = str(reason)
        except ContractError as failure:
            raise ContractError(f"{tested.name} breaks {name!r}: {failure}") from failure
        except Exception as problem:
            raise ContractError(f"{tested.name} breaks {name!r}: {said(problem)}") from problem
    return excluded
