"""A byte-level Llama small enough to be trained in a test, and text for it."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TRAINED = 64
LIBRARY = Path(sysconfig.get_path("stdlib"))
TEXT = tuple(str(LIBRARY / f"{name}.py") for name in ("argparse", "ast", "inspect", "tarfile", "mailbox"))


def byte_tokenizer():
    """A token for each byte, and one that ends a text."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    inner.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|endoftext|>")


def llama(**more):
    """An untrained model."""
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(
        **{
            **shape,
            "num_key_value_heads": 2,
            "vocab_size": 257,
            "max_position_embeddings": TRAINED,
            "bos_token_id": 256,
            "eos_token_id": 256,
            "tie_word_embeddings": True,
            **more,
        }
    )
    return LlamaForCausalLM(config)


def train(model, steps, length=TRAINED, rows=16):
    """Train it on some of the text."""
    text = "".join(Path(file).read_text(encoding="utf-8") for file in TEXT[:3])
    data = torch.tensor(byte_tokenizer()(text)["input_ids"])
    draw = torch.Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        starts = torch.randint(len(data) - length - 1, (rows, 1), generator=draw)
        batch = data[starts + torch.arange(length)]
        model(batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def save(model, folder):
    """Write a checkpoint with its tokenizer."""
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
