"""What transformers alone makes of an exported checkpoint: run in a process of its own, where ropewalk cannot be imported."""

import sys

sys.modules["ropewalk"] = None  # type: ignore[assignment]

import torch  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file, save_file  # noqa: E402


def main(folder: str, asked: str, answer: str) -> None:
    """Load the model, compute logits for the tokens in ``asked``, and write them with the frequencies to ``answer``."""
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    kind = getattr(transformers, config.architectures[0])
    model = kind.from_pretrained(folder, local_files_only=True, use_safetensors=True, dtype="auto").eval()
    out = {}
    with torch.no_grad():
        given = load_file(asked)
        out["logits"] = model(given["input_ids"], position_ids=given["position_ids"], use_cache=False)[0].float()
    for name, module in model.named_modules():
        for key, value in vars(module).items():
            if key.endswith("attention_scaling"):
                out[f"{name}.{key}"] = torch.tensor(float(value), dtype=torch.float64)
        for key, buffer in module.named_buffers(recurse=False):
            if key.endswith("inv_freq"):
                out[f"{name}.{key}"] = buffer.clone()
    save_file({key: value.contiguous() for key, value in out.items()}, answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
