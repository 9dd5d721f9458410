"""Where the tasks come from."""

from __future__ import annotations

CONTEXTUAL = (
    "Golovneva, Wang, Weston, Sukhbaatar, Contextual Position Encoding: Learning to Count What's Important, "
    "arXiv 2405.18719, 2024"
)
COUPLING = (
    "Cho, Cha, Awasthi, Bhojanapalli, Gupta, Yun, Position Coupling: Improving Length Generalization of Arithmetic "
    "Transformers Using Task Structure, arXiv 2405.20671, 2024"
)
FLIP_FLOP = (
    "Liu, Ash, Goel, Krishnamurthy, Zhang, Exposing Attention Glitches with Flip-Flop Language Modeling, "
    "arXiv 2306.00946, 2023"
)
IMPACT = (
    "Kazemnejad, Padhi, Natesan Ramamurthy, Das, Reddy, The Impact of Positional Encoding on Length Generalization in "
    "Transformers, arXiv 2305.19466, 2023"
)
MAMBA = "Gu, Dao, Mamba: Linear-Time Sequence Modeling with Selective State Spaces, arXiv 2312.00752, 2023"
POLAR = (
    'Gopalakrishnan, Csordás, Schmidhuber, Mozer, Decoupling the "What" and "Where" With Polar Coordinate Positional '
    "Embeddings, arXiv 2509.10534, 2025"
)
RANDOMIZED = (
    "Ruoss, Delétang, Genewein, Grau-Moya, Csordás, Bennani, Legg, Veness, Randomized Positional Encodings Boost Length "
    "Generalization of Transformers, arXiv 2305.16843, 2023"
)
RULER = (
    "Hsieh, Sun, Kriman, Acharya, Rekesh, Jia, Zhang, Ginsburg, RULER: What's the Real Context Size of Your Long-Context "
    "Language Models?, arXiv 2404.06654, 2024"
)
ZOOLOGY = (
    "Arora, Eyuboglu, Timalsina, Johnson, Poli, Zou, Rudra, Ré, Zoology: Measuring and Improving Recall in Efficient "
    "Language Models, arXiv 2312.04927, 2023"
)
