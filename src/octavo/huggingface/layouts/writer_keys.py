"""Keys of configurations that say how codes were found, or what a kernel is to do: tensors say all that is computed."""

from __future__ import annotations

AUTO_ROUND = (
    "amp", "autoround_version", "backend", "batch_size", "block_name_to_quantize", "data_type", "dataset",
    "enable_minmax_tuning", "enable_norm_bias_tuning", "enable_quanted_input", "gradient_accumulate_steps", "iters",
    "low_gpu_mem_usage", "lr", "minmax_lr", "model_free", "nsamples", "provider", "quant_block_list", "scale_dtype",
    "seqlen", "static_attention_granularity", "static_kv_granularity", "to_quant_block_names",
)
"""AutoRound's, which are in the configurations of GPTQ and AWQ too that it writes."""
GPTQ = (
    "act_group_aware", "cache_block_outputs", "damp_auto_increment", "damp_percent", "disable_exllama",
    "exllama_config", "hyb_act", "is_marlin_format", "lm_head", "max_input_length", "meta", "model_file_base_name",
    "model_name_or_path", "model_seqlen", "module_name_preceding_first_block", "modules_in_block_to_quantize", "mse",
    "offload_to_disk", "pad_token_id", "quantizer", "static_groups", "tokenizer", "true_sequential", "use_cuda_fp16",
    "use_exllama", "version",
)
"""AutoGPTQ's and GPTQModel's."""
AWQ = (
    "checkpoint_format", "do_fuse", "exllama_config", "fuse_max_seq_len", "lm_head", "meta", "modules_to_fuse",
    "pack_dtype", "sym",
)
"""AutoAWQ's and GPTQModel's, which has `sym` beside `zero_point`, its opposite."""
