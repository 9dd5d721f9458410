"""The contract suite itself: every check fails on an encoding that breaks what it checks."""

from __future__ import annotations

import importlib
import inspect
import math
import pkgutil
import sys

import pytest
import torch
from torch import nn

import ropewalk as rw
from ropewalk import testing
from ropewalk.bias.alibi import ALiBi
from ropewalk.bias.fox import FoX
from ropewalk.bias.nope import NoPE
from ropewalk.catalog import Traits
from ropewalk.core.attention import Finish, Pointwise
from ropewalk.core.encoding import Encoding
from ropewalk.core.errors import ConfigError, NotCausal
from ropewalk.core.positions import Positions, Tokens
from ropewalk.rotary.rope import RoPE

ROPE = Traits(relative=True, norm_preserving=True, content_dependent=False, streamable=True, linear_attention=True)
BIAS = Traits(relative=True, norm_preserving=True, content_dependent=False, streamable=True, linear_attention=False)
ABSOLUTE = Traits(relative=False, norm_preserving=True, content_dependent=False, streamable=True, linear_attention=True)
OPEN = Traits(relative=False, norm_preserving=False, content_dependent=True, streamable=True, linear_attention=False)
GATED = Traits(
    relative=True, norm_preserving=True, content_dependent=True, streamable=True, linear_attention=False, causal="only"
)


def change(traits, **claims):
    return Traits(**{**{name: getattr(traits, name) for name in Traits.__slots__}, **claims})


def breaks(factory, *checks, traits=None, raised=testing.ContractError):
    for check in checks:
        with pytest.raises(testing.ContractError) as caught:
            testing.check_encoding(factory, traits, checks=[check])
        assert f"breaks {check!r}" in str(caught.value)
        said = str(caught.value)
        assert isinstance(caught.value.__cause__, raised), said  # for what it measured, not for an accident


# ---- encodings that are right ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("factory", "traits"), [(RoPE, ROPE), (ALiBi, BIAS), (FoX, GATED)], ids=lambda v: str(v)[:12])
def test_right_encodings_pass(factory, traits):
    quick = [c for c in testing.checks() if c not in ("compile", "export")]
    excluded = testing.check_encoding(factory, traits, checks=quick)
    assert set(excluded) <= set(quick)
    assert all(excluded.values())


def test_factories_without_keywords():
    testing.check_encoding(lambda: rw.RoPE(testing.HEAD_DIM), ROPE, checks=["decoding", "batch", "relative"])


def test_records_bring_their_traits():
    assert testing.check_encoding(rw.record("rope"), checks=["relative", "max_position"]).keys() == {"max_position"}


def test_nothing_claimed_nothing_checked():
    assert "relative" in testing.check_encoding(RoPE, checks=["relative", "backends"])


def test_positions_of_another_domain():
    class TwoAxes(rw.Rotary):
        axes = 2

        def angles(self, position):
            return torch.cat([position * f for f in (1.0, 0.3)], -1)

        def fit(self, head_dim):
            pass

    def grid(batch, seq, generator):
        return Positions(torch.rand(batch, seq, 2, generator=generator, dtype=torch.float64))

    checks = ["backends", "batch", "padding", "packing", "decoding", "relative", "edit", "errors"]
    traits = change(ROPE, domain="elsewhere")
    assert testing.check_encoding(TwoAxes, traits, checks=checks, positions=grid) == {}
    with pytest.raises(ConfigError, match="elsewhere"):
        testing.check_encoding(TwoAxes, traits)


def test_names():
    assert len(set(testing.checks())) == len(testing.checks())
    assert set(testing.checks(slow=True)) - set(testing.checks()) == testing.SLOW
    with pytest.raises(ConfigError, match="no check"):
        testing.check_encoding(RoPE, checks=["nonsense"])


def test_factories_that_make_something_else():
    with pytest.raises(testing.ContractError, match="Linear"):
        testing.check_encoding(lambda: nn.Linear(2, 2), checks=["backends"])


def test_bare_errors_are_reported_with_the_check():
    class Broken(NoPE):
        def rewrite(self, problem):
            raise KeyError("inv_freq")

    with pytest.raises(testing.ContractError, match=r"Broken breaks 'batch': KeyError: 'inv_freq'"):
        testing.check_encoding(Broken, checks=["batch"])


# ---- encodings that are broken, one way each -----------------------------------------------------------------------


class Captured(NoPE):
    """A bias whose tensors sit in a closure."""

    def rewrite(self, problem):
        i, j = (t.coordinates()[:, None] for t in (problem.where.query, problem.where.key))
        bias = -0.1 * (i[..., :, None] - j[..., None, :])

        def fn(i):
            return bias

        return problem.add(Pointwise(fn, (problem.coordinate(),), ()))


class CapturedDeeper(NoPE):
    """The same, behind another function."""

    def rewrite(self, problem):
        slope = torch.tensor(0.1)

        def inner(d):
            return d * slope

        def fn(i, j):
            return inner(j - i)

        return problem.add(Pointwise(fn, (problem.coordinate(),), (problem.coordinate(),)))


def test_captured_tensors():
    breaks(Captured, "nothing_captured")
    breaks(Captured, "parts", raised=RuntimeError)  # sizes that do not fit, from inside torch
    breaks(CapturedDeeper, "nothing_captured")


class RowCounts(RoPE):
    """Counts rows, and never looks at positions."""

    def tables(self, tokens, chain, dtype):
        return super().tables(Tokens.arange(tokens.length), chain, dtype)


def test_row_counts_for_positions():
    breaks(RowCounts, "decoding", "decoding_counted", "padding", "stored", "queries_apart")


class Off(RoPE):
    """One too many, once something was decoded."""

    def tables(self, tokens, chain, dtype):
        if tokens.length < 5:
            tokens = Tokens({"position": tokens.position + 1})
        return super().tables(tokens, chain, dtype)


def test_offsets_in_decoding():
    breaks(Off, "decoding", "snapshot")


class CastFrequencies(rw.Rotary):
    """Frequencies in an ordinary buffer."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        f = 10_000.0 ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
        self.register_buffer("inv_freq", f.float(), persistent=False)

    def angles(self, position):
        return position[..., None] * self.inv_freq.double()

    def _apply(self, fn, recurse=True):
        return nn.Module._apply(self, fn, recurse)


class SingleFrequencies(RoPE):
    """Frequencies rounded to float32."""

    def _inverse_frequencies(self):
        return super()._inverse_frequencies().float()


class SingleAngles(RoPE):
    """Position times frequency in float32."""

    def angles(self, position):
        return (position.float()[..., None] * self.inv_freq.float()).double()


def test_frequencies_in_low_precision():
    breaks(CastFrequencies, "casts", "precision", "low_precision", "meta", "copies")
    breaks(SingleFrequencies, "precision")
    breaks(SingleAngles, "precision")


class Turned(NoPE):
    """Turns the queries only: norms stay, differences of positions do not decide."""

    def rewrite(self, problem):
        q = problem.q
        angle = problem.where.query.coordinates()[:, None, :, None].to(q.dtype)
        a, b = q.chunk(2, -1)
        return problem.replace(q=torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1))


class Grown(NoPE):
    """Scales every query and key."""

    def rewrite(self, problem):
        return problem.map_queries(lambda q: 1.1 * q).map_keys(lambda k: k / 1.1)


def test_false_claims():
    breaks(Turned, "relative", traits=ROPE)
    breaks(Grown, "norm_preserving", traits=ROPE)
    breaks(FoX, "content_dependent", traits=change(GATED, content_dependent=False))
    breaks(ALiBi, "linear_attention", traits=ROPE)
    breaks(NoPE, "max_position", traits=change(ROPE, max_position=100))
    breaks(NoPE, "real_positions", traits=change(ROPE, real_positions=False))
    breaks(NoPE, "causal", traits=change(ROPE, causal="only"))


def test_properties_that_are_not_claimed():
    breaks(RoPE, "relative", "norm_preserving", "linear_attention", "content_dependent", traits=OPEN)


class OfContent(NoPE):
    """Turns each token by an angle that depends on its own content."""

    def rewrite(self, problem):
        def turn(t):
            angle = t[..., :1] * problem.where.query.coordinates()[:, None, :, None].to(t.dtype)
            a, b = t.chunk(2, -1)
            return torch.cat([a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()], -1)

        return problem.map_queries(turn).map_keys(turn)


def test_content_in_the_angle():
    breaks(OfContent, "content_dependent", traits=ABSOLUTE)
    testing.check_encoding(OfContent, change(ABSOLUTE, content_dependent=True), checks=["content_dependent"])


class Truncated(RoPE):
    """Real positions cut off."""

    def angles(self, position):
        return super().angles(position.floor())


def test_truncated_positions():
    breaks(Truncated, "real_positions", traits=ROPE)


class Forgetful(FoX):
    """Padding forgets, too."""

    def observe(self, problem, state=None):
        columns = problem.where.query.columns
        if "valid" not in columns:
            return super().observe(problem, state)
        bare = problem.replace(positions=Positions(problem.where.query.with_columns(valid=columns["valid"] | True)))
        seen, state = super().observe(bare, state)
        return seen.replace(positions=problem.positions), state


class Padded(RoPE):
    """Counts padding where it looks at whole rows."""

    def tables(self, tokens, chain, dtype):
        if "valid" in tokens.columns and tokens.length > 1:
            tokens = Tokens({**tokens.columns, "position": torch.arange(tokens.length)[None]})
        return super().tables(tokens, chain, dtype)


class Unmasked(NoPE):
    """Lets everybody see padding."""

    def rewrite(self, problem):
        columns = {n: c for n, c in problem.where.key.columns.items() if n not in ("valid", "document")}
        return problem.replace(positions=Positions(Tokens(columns)))


def test_padding():
    breaks(Forgetful, "padding", traits=GATED)
    breaks(Padded, "padding", "decoding_padded")
    breaks(Unmasked, "padding", "packing")


class Stateless(FoX):
    """Begins its sums anew with every chunk."""

    def observe(self, problem, state=None):
        return super().observe(problem, None)


class Shared(FoX):
    """Keeps its state on the module."""

    def observe(self, problem, state=None):
        problem, self.last = super().observe(problem, getattr(self, "last", None))
        return problem, None


class NoState(FoX):
    """Hides its state from the cache."""

    def observe(self, problem, state=None):
        return super().observe(problem, state)[0], None


class HeadsFirst(FoX):
    """State with the heads first, where the cache picks rows."""

    def observe(self, problem, state=None):
        problem, state = super().observe(problem, None if state is None else state.t())
        return problem, state.t()


class EveryOther(RoPE):
    """Works two times out of three."""

    calls = 0

    def rewrite(self, problem):
        self.calls += 1
        return super().rewrite(problem) if self.calls % 3 else problem


class AtTop(RoPE):
    """Works only outside of combinators."""

    def rewrite(self, problem):
        return super().rewrite(problem) if not problem.scope else problem


def test_layers_and_combinators():
    breaks(EveryOther, "layers", "result")
    breaks(AtTop, "combinators")


def test_running_state():
    breaks(HeadsFirst, "beams", traits=GATED, raised=(testing.ContractError, RuntimeError))
    breaks(Stateless, "decoding", "decoding_counted", "after_rope", "per_head", traits=GATED)
    breaks(Shared, "memory", "batch", "snapshot", traits=GATED)
    breaks(NoState, "crop", "edit", traits=GATED)


class Neighbour(NoPE):
    """Scales by the longest row of the batch."""

    def rewrite(self, problem):
        top = problem.where.key.coordinates().max()
        return problem.map_queries(lambda q: q * torch.log(top + 2).to(q.dtype))


def test_neighbours_and_lengths():
    breaks(Neighbour, "batch", "decoding", "padding")
    breaks(Neighbour, "short", raised=RuntimeError)  # the maximum of nothing


class Raised(NoPE):
    """Returns float32 whatever came in."""

    def rewrite(self, problem):
        return problem.map_queries(lambda q: q.float()).map_keys(lambda k: k.float())


class InPlace(NoPE):
    """Writes into q."""

    def rewrite(self, problem):
        return problem.map_queries(lambda q: q.mul_(1.5))


class Remembers(NoPE):
    """Grows with the longest request."""

    top = 0.0

    def rewrite(self, problem):
        self.top = max(self.top, float(problem.where.key.position.max()))
        return problem.map_queries(lambda q: q * math.log(self.top + 2))


def test_results_and_memory():
    breaks(Raised, "result")
    breaks(InPlace, "result")
    breaks(Remembers, "memory")


class Views(NoPE):
    """Only takes contiguous tensors."""

    def rewrite(self, problem):
        return problem.map_queries(lambda q: q.view(*q.shape[:-1], -1, 2).view(q.shape)).map_keys(
            lambda k: k.as_strided(k.shape, torch.empty(k.shape).stride())
        )


def test_strides():
    breaks(Views, "strides")


class WrongFactors(ALiBi):
    """Factors that say something else than the bias."""

    def factors(self, i, j, slope):
        return (-slope * i, 1.0), (slope, 0.9 * j)


def test_factors():
    breaks(WrongFactors, "backends", "grouped_heads")


class Detached(FoX):
    """Loses the gradient of its parameters."""

    def observe(self, problem, state=None):
        with torch.no_grad():
            return super().observe(problem, state)


class WrongGradient(NoPE):
    """A straight-through gradient."""

    def rewrite(self, problem):
        return problem.map_queries(lambda q: q + (q.sin() - q).detach())


def test_gradients():
    breaks(Detached, "gradients", traits=GATED)
    breaks(WrongGradient, "gradients")


class Branching(NoPE):
    """Asks a tensor which way to go."""

    def rewrite(self, problem):
        if bool(problem.where.key.position.max() > 20):
            return problem.map_queries(lambda q: q * 1.5)
        return problem


class OneGraphEach(NoPE):
    """Compiles a graph a length."""

    def rewrite(self, problem):
        n = problem.where.key.length
        return problem.map_queries(lambda q: q * math.log(int(n)))


def test_compilers():
    breaks(Branching, "compile", "export")
    breaks(OneGraphEach, "compile")


class Autocast(FoX):
    """Leaves its gates to autocast."""

    def observe(self, problem, state=None):
        gate = torch.nn.functional.linear(problem.hidden.to(self.weight.dtype), self.weight, self.bias)
        total = gate.double().sigmoid().log().transpose(1, 2).cumsum(-1)
        after = total[..., -1] if total.shape[-1] else state
        return problem.with_features(q={"sum": total[..., None]}, k={"sum": total[..., None]}), after


def test_autocast():
    breaks(Autocast, "autocast", traits=GATED)


class Redraws(NoPE):
    """Draws anew whenever it is asked."""

    def draw(self, positions):
        return positions.map_sides(lambda t: t.with_sequence(noise=torch.rand(1, 4)))


class Noisy(NoPE):
    """Is random inside."""

    def rewrite(self, problem):
        return problem.map_queries(lambda q: q + torch.randn_like(q))


def test_randomness():
    breaks(Redraws, "draws")
    breaks(Noisy, "result", "decoding", "memory")


class Blank(NoPE):
    """Fills rows that see nothing."""

    def rewrite(self, problem):
        return problem.replace(finish=(*problem.finish, Finish(lambda out: out + 1.0)))


def test_masks():
    breaks(Blank, "masks")


class BareErrors(NoPE):
    """Multiplies by a matrix of one width, come what may."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.width = head_dim

    def rewrite(self, problem):
        eye = torch.eye(self.width, dtype=problem.q.dtype)
        return problem.map_queries(lambda q: q @ eye)


class AnySize(RoPE):
    """Takes any number of heads."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads


class LateSize(AnySize):
    """Takes any number of heads, and complains when it sees other ones."""

    def rewrite(self, problem):
        if problem.num_heads != self.num_heads:
            raise ConfigError(f"made for {self.num_heads} heads, and the problem has {problem.num_heads}")
        return super().rewrite(problem)


class LateBareSize(AnySize):
    """The same, without an error of its own."""

    def rewrite(self, problem):
        scale = torch.ones(1, self.num_heads, 1, 1)
        return super().rewrite(problem.map_queries(lambda q: q * scale))


def test_errors():
    breaks(BareErrors, "errors")


def test_sizes_are_refused_when_made_or_first_used():
    breaks(AnySize, "sizes")
    breaks(LateBareSize, "sizes")
    assert testing.check_encoding(LateSize, checks=["sizes"]) == {}


class Moves(RoPE):
    """Forgets to turn cached keys."""

    def move(self, problem, tokens):
        return problem


def test_edit():
    breaks(Moves, "edit")


class InState(RoPE):
    """Keeps what can be derived in the state dict."""

    def derive(self, name, make):
        super().derive(name, make)
        self._non_persistent_buffers_set.discard(name)


def test_state():
    breaks(InState, "copies")


class Swapped(NoPE):
    """Mixes neighbouring heads."""

    def rewrite(self, problem):
        return problem.map_queries(lambda q: q + 0.1 * q.roll(1, 1))


def test_heads():
    breaks(Swapped, "heads_permuted")


class Quiet(NoPE):
    """Refuses without a word."""

    def observe(self, problem, state=None):
        if not problem.causal:
            raise NotCausal("no")
        return problem, state


def test_refusals_say_why():
    breaks(Quiet, "causal", traits=change(ROPE, causal="only"))


class Streams(Encoding):
    """Cannot be streamed, and claims it can."""

    def observe(self, problem, state=None):
        mean = problem.k.mean(2, keepdim=True)
        return problem.with_features(q={"mean": mean}), state

    def rewrite(self, problem):
        return problem.replace(q=problem.q + problem.qf[problem.name("mean")].repeat_interleave(2, 1))


def test_streaming():
    breaks(Streams, "decoding", traits=OPEN)


def test_every_check_is_run():
    """Each function of the package that is named as a check has its place in the order."""
    modules = [importlib.import_module(m.name) for m in pkgutil.iter_modules(testing.__path__, "ropewalk.testing.")]
    written = {f for m in modules for name, f in vars(m).items() if name.startswith("check_")}
    assert written == set(testing.CHECKS.values())
    assert set(testing.CHECKS) >= testing.SLOW


def test_every_check_was_seen_to_fail():
    """Each check is named in a `breaks` of this file."""
    source = inspect.getsource(sys.modules[__name__])
    calls = " ".join(line for line in source.splitlines() if line.strip().startswith("breaks("))
    named = {name for name in testing.checks() if f'"{name}"' in calls}
    assert set(testing.checks()) - named == set()
