"""RoPE with the frequencies of published schedules, for a context that is fixed when it is made.

Each is ``RoPE(spectrum=...)``; `ropewalk.frequencies` has the schedules themselves, which chain.
"""

from __future__ import annotations

from ropewalk.core.rotation import Pairing
from ropewalk.frequencies.clipped import Clipping
from ropewalk.frequencies.spectrum import geometric
from ropewalk.rotary.rope import RoPE


def pi(head_dim: int, factor: float = 4.0, base: float = 10_000.0, pairing: Pairing = "half") -> RoPE:
    """RoPE at ω_i / s: position interpolation.

    Args:
        head_dim: width of a head, even.
        factor: s, new context over the original one.
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved".

    Source: Shouyuan Chen, Sherman Wong, Liangjian Chen, Yuandong Tian. Extending Context Window of Large Language Models
    via Positional Interpolation. arXiv 2306.15595, 2023.
    """
    return RoPE(pairing=pairing, spectrum=geometric(head_dim, base).linear(factor))


def ntk(head_dim: int, factor: float = 4.0, base: float = 10_000.0, pairing: Pairing = "half") -> RoPE:
    """RoPE at ω_i s^(−i/(P−1)): NTK-aware scaling, a larger base.

    Args:
        head_dim: width of a head, even.
        factor: s, new context over the original one.
        base: of the frequencies before scaling.
        pairing: "half" as in Llama, or "interleaved".

    Source: bloc97, NTK-Aware Scaled RoPE, 2023; in Bowen Peng, Jeffrey Quesnelle, Honglu Fan, Enrico Shippole. YaRN:
    Efficient Context Window Extension of Large Language Models. arXiv 2309.00071, 2023.
    """
    return RoPE(pairing=pairing, spectrum=geometric(head_dim, base).ntk(factor))


def yarn(
    head_dim: int, factor: float = 4.0, original: float = 4096, base: float = 10_000.0, pairing: Pairing = "half"
) -> RoPE:
    """RoPE at (1 − g_i) ω_i / s + g_i ω_i, with cos and sin times 0.1 ln s + 1.

    Args:
        head_dim: width of a head, even.
        factor: s, new context over the original one.
        original: L, tokens of the training context.
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved".

    Source: Bowen Peng, Jeffrey Quesnelle, Honglu Fan, Enrico Shippole. YaRN: Efficient Context Window Extension of Large
    Language Models. arXiv 2309.00071, 2023.
    """
    return RoPE(pairing=pairing, spectrum=geometric(head_dim, base).yarn(factor, original))


def llama3(
    head_dim: int, factor: float = 8.0, original: float = 8192, base: float = 500_000.0, pairing: Pairing = "half"
) -> RoPE:
    """RoPE at (1 − g_i) ω_i / s + g_i ω_i, g_i rising from 0 at one turn in the training context to 1 at four.

    Args:
        head_dim: width of a head, even.
        factor: s, new context over the original one.
        original: L, tokens of the training context.
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved".

    Source: Abhimanyu Dubey and others. The Llama 3 Herd of Models. arXiv 2407.21783, 2024.
    """
    return RoPE(pairing=pairing, spectrum=geometric(head_dim, base).llama3(factor, original))


def dprope(
    head_dim: int, original: int = 4096, length: int = 8192, base: float = 10_000.0, pairing: Pairing = "half"
) -> RoPE:
    """RoPE at ω_i / s for the planes whose angles would be distributed differently from training, ω_i for the others.

    Args:
        head_dim: width of a head, even.
        original: L, tokens of the training context.
        length: tokens of the new one, s times as many.
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved".

    Source: Yingsheng Wu, Yuxuan Gu, Xiaocheng Feng, Weihong Zhong, Dongliang Xu, Qing Yang, Hongtao Liu, Bing Qin. Extending
    Context Window of Large Language Models from a Distributional Perspective. arXiv 2410.01490, 2024.
    """
    return RoPE(pairing=pairing, spectrum=geometric(head_dim, base).dprope(original, length))


def clipped_rope(
    head_dim: int, planes: int = 20, mode: Clipping = "soft", base: float = 500_000.0, pairing: Pairing = "half"
) -> RoPE:
    """RoPE at ω_(s+t) (1 + cos(πt / (n − 1))) / 2 in its last n planes: the slowest pairs are slowed down to a stop.

    Args:
        head_dim: width of a head, even.
        planes: n; 20 of 64 in the paper, and not meant for other widths.
        mode: "soft", or "hard": the last n planes stop at once.
        base: of the frequencies.
        pairing: "half" as in Llama, or "interleaved".

    Source: Haoran Li, Sucheng Ren, Alan Yuille, Feng Wang. CoPE: Clipped RoPE as A Scalable Free Lunch for Long Context
    LLMs. arXiv 2602.05258, 2026.
    """
    return RoPE(pairing=pairing, spectrum=geometric(head_dim, base).clipped(planes, mode))
