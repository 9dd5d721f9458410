"""The model families of the bridge, at tiny size, from their configuration classes: nothing is downloaded."""

from __future__ import annotations

import torch
import transformers

COMMON = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
TWO_TYPES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 12,
    "v_head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10_000.0,
    "factor": 2.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 4.0],
    "long_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 4.0],
    "original_max_position_embeddings": 32,
}

# name -> (class of the configuration, class of the model, what the configuration says besides COMMON)
FAMILIES = {
    "llama2": ("LlamaConfig", "LlamaForCausalLM", {"num_key_value_heads": 4}),
    "llama3": ("LlamaConfig", "LlamaForCausalLM", {"rope_parameters": LLAMA3}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": 5}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {"head_dim": 24}),
    "gemma2": ("Gemma2Config", "Gemma2ForCausalLM", {"head_dim": 16, "query_pre_attn_scalar": 20, **TWO_TYPES}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {"head_dim": 16, "query_pre_attn_scalar": 20, **TWO_TYPES}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32}),
    "gpt_neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", {}),
    "stablelm": ("StableLmConfig", "StableLmForCausalLM", {}),
    "olmo2": ("Olmo2Config", "Olmo2ForCausalLM", {}),
    "smollm3": ("SmolLM3Config", "SmolLM3ForCausalLM", {"no_rope_layers": [1, 0]}),
    "cohere": ("CohereConfig", "CohereForCausalLM", {}),
    "deepseek_v2": ("DeepseekV2Config", "DeepseekV2ForCausalLM", MLA),
    "deepseek_v3": (
        "DeepseekV3Config",
        "DeepseekV3ForCausalLM",
        {**MLA, "rope_parameters": {**YARN, "mscale": 1.0, "mscale_all_dim": 0.7}},
    ),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": YARN, **TWO_TYPES},
    ),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {"local_attention": 6, "layer_types": ["full_attention", "sliding_attention"], "num_key_value_heads": None},
    ),
}
DECODERS = [name for name in FAMILIES if name != "modernbert"]


def config(name, **more):
    """Return a tiny configuration."""
    config_class, _, own = FAMILIES[name]
    values = {**COMMON, **own, **more}
    if config_class in ("GPTNeoXConfig", "ModernBertConfig"):
        values.pop("num_key_value_heads")
    return getattr(transformers, config_class)(**values)


def model(name, **more):
    """Return a tiny model in eval mode, the same at every call."""
    torch.manual_seed(0)
    made = getattr(transformers, FAMILIES[name][1])(config(name, **more)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim > 1:  # larger than a fresh model's: positions have to show in the logits
                parameter.mul_(8.0)
    return made


def tokens(rows=2, length=12, seed=1):
    return torch.randint(2, 64, (rows, length), generator=torch.Generator().manual_seed(seed))
