/* small_models.h - two models of four narrow layers, as words of a job (random_job.h). */
#pragma once

#define SIZES                                                                                      \
  "topology=cpu num_layers=4 hidden_size=32 num_attention_heads=4 kv_channels=8 "                  \
  "ffn_hidden_size=48 vocab_size=96 seq_length=16 max_position_embeddings=16 "                     \
  "global_batch_size=4 "
#define LLAMA "model=llama-nano num_query_groups=2 " SIZES
#define GPT2 "model=gpt2-nano num_query_groups=4 " SIZES
