"""Names that several published methods have, or that differ by a letter."""

from __future__ import annotations

from dataclasses import dataclass

from ropewalk.catalog.entry import normalise


@dataclass(frozen=True, slots=True)
class Candidate:
    """One of several methods that share a name, or almost."""

    slug: str
    name: str
    arxiv: str | None
    summary: str

    @property
    def available(self) -> bool:
        """Whether this installation has it."""
        from ropewalk.catalog import catalog

        return any(entry.slug == self.slug for entry in catalog())

    def __str__(self) -> str:
        paper = f", arXiv {self.arxiv}" if self.arxiv else ""
        return f"{self.slug} ({self.name}{paper}{'' if self.available else '; not available yet'})"


# A slug of the catalog means that record; any other name here is an error that lists the candidates.
SHARED_NAMES: dict[str, tuple[Candidate, ...]] = {}


def _share(names: str, *candidates: Candidate) -> None:
    SHARED_NAMES.update(dict.fromkeys(names.split(), candidates))


_share(
    "cope",
    Candidate("contextual_cope", "Contextual Position Encoding", "2405.18719", "counts gated tokens"),
    Candidate("clipped_cope", "Clipped RoPE", "2602.05258", "tapers the lowest frequencies to zero"),
    Candidate("complex_cope", "Complex Positional Encoding", "2508.18308", "position as imaginary part"),
)
_share(
    "drope",
    Candidate("drope_directional", "Directional RoPE", "2503.15029", "turns all pairs by a heading"),
    Candidate("drope_dropping", "Dropped positional embeddings", "2512.12167", "RoPE removed after training"),
)
_share(
    "harpe harope",
    Candidate("harpe", "HARPE", "2412.07171", "a base for each head, to extend the context in one stage"),
    Candidate("harope", "HARoPE", "2510.10489", "a trained matrix for each head before RoPE, for images"),
)
_share(
    "hope",
    Candidate("hope_hyperbolic", "Hyperbolic Rotary", "2509.05218", "Lorentz boosts instead of rotations"),
    Candidate("hope_high_frequency", "High-frequency rotary", "2410.21216", "turns only the fast pairs"),
    Candidate("hope_video", "Hybrid of Position Embedding", "2505.20444", "video RoPE with idle time pairs"),
)
_share(
    "hrope hirope",
    Candidate("hrope_paragraph", "hRoPE", "2609.23551", "paragraph, sentence and token channels"),
    Candidate("hrope_homography", "Homography encoding", None, "plane-induced homographies between views"),
    Candidate("hirope", "HiRoPE", "2403.19115", "token and function index on separate pairs, for code"),
)
_share(
    "p_rope prope",
    Candidate("p_rope_fraction", "p-RoPE", "2410.06205", "turns only the fastest fraction p of the pairs"),
    Candidate("p_rope_periodic", "Periodic RoPE", "2605.27980", "positions modulo the attention window"),
    Candidate("prope_camera", "Projective encoding", "2507.10496", "relative transforms of whole cameras"),
)
_share(
    "pope",
    Candidate("pope", "Polar coordinates", "2509.10534", "content in magnitudes, position in angles"),
    Candidate("pope_legendre", "Orthogonal polynomials", "2405.04585", "Legendre polynomials, embedded"),
)
_share(
    "string",
    Candidate("string_shifted", "Shifted rotary", "2410.18745", "far keys at shorter distances"),
    Candidate("string_separable", "Separable encodings", "2502.02562", "commuting generators, any axes"),
)
_share(
    "legendre",
    Candidate(
        "orthogonal_legendre", "Legendre embedding", "2506.06398", "Legendre polynomials added to the embeddings"
    ),
    Candidate("pope_legendre", "Orthogonal polynomials", "2405.04585", "Legendre polynomials, embedded"),
)
_share(
    "wavelet wavelets",
    Candidate("wavelet_pe", "Wavelet PE", "2502.02004", "wavelets of the distance, weighed by the query"),
    Candidate("orthogonal_wavelet", "Haar wavelets", "2506.06398", "wavelets of the position, added to the embeddings"),
)
_share(
    "gape pape",
    Candidate("gape", "Gated adaptive bias", "2605.10414", "query and landmark gates on the distance"),
    Candidate("pape", "Parabolic encoding", "2602.01418", "parabolas of the relative position, for vision"),
)


def shared(name: str) -> tuple[Candidate, ...]:
    """Methods that go by that name, where several do; otherwise nothing."""
    return SHARED_NAMES.get(normalise(name), ())


def namesakes(slug: str) -> tuple[Candidate, ...]:
    """Return the other methods that go by a name of this one, and may have been meant instead."""
    groups = [group for group in SHARED_NAMES.values() if any(one.slug == slug for one in group)]
    return tuple({other.slug: other for group in groups for other in group if other.slug != slug}.values())
