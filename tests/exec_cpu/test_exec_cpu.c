/* Training steps with real numbers: under every strategy, loss, norm, gradients, weights and
 * moments must be bitwise equal to those of a run on one rank.
 *
 * test_exec_cpu exec_cpu [-- all]: runs every strategy with each small model in each precision,
 * which are five times as many runs as usual */
#include "core/base/sanitize.h"
#include "exec_cpu/exec_cpu.h"
#include "exec_sim/exec_sim.h"
#include "tests/made/random_job.h"
#include "tests/made/real_run.h"
#include "tests/runner/runner.h"
#include <math.h>
#include <string.h>

#define STEPS 2
/* For one model and precision, every stride()-th strategy runs, from first_of() on. The next
 * precision begins one strategy later, and the next model APART strategies later, so that together
 * they run every strategy: with a stride of 5 in each precision, with another model each time, and
 * with `./weft test --long` more often. Sanitizers are slow: with them, fewer strategies and a
 * tenth of the seeds run. */
#define SANITIZED (WEFT_ADDRESS_SANITIZER || WEFT_THREAD_SANITIZER)
enum { APART = 13 };
static gboolean every_combination;
#define RARELY (SANITIZED ? 12 : 1)
/* the same for nano models, of whose runs a third is usual (`./weft test --long`: all) */
#define NANOS_RARELY (SANITIZED ? 12 : weft_tests_cases (3, 1))
#define SEEDS (SANITIZED ? 5 : weft_tests_cases (20, 50))
#define SHARING 4 /* every 4th strategy runs with several threads per rank */

/* These tests make hundreds of runs. To save time, most of them use models of a quarter of the size
 * (models[]), and only some the nano models (nanos[]). */
#define GPT2 "model=gpt2-nano seq_length=16 global_batch_size=8"
#define LLAMA "model=llama-nano seq_length=16 global_batch_size=8"
#define MIXTRAL "model=mixtral-nano seq_length=16 global_batch_size=8"
#define SMALL(groups)                                                                              \
  " hidden_size=32 num_attention_heads=4 num_query_groups=" groups                                 \
  " kv_channels=8 ffn_hidden_size=96"

static const char *const models[] = {
  GPT2 SMALL ("4"),
  GPT2 SMALL ("4") " share_embeddings_and_output_weights=false",
  LLAMA SMALL ("2"),
  LLAMA SMALL ("2") " share_embeddings_and_output_weights=true qk_layernorm=true",
  MIXTRAL SMALL ("2") " moe_ffn_hidden_size=48 moe_shared_expert_intermediate_size=24 "
                      "moe_first_dense_layers=1",
};
static const char *const nanos[] = { GPT2, LLAMA };

static const char *const precisions[] = {
  "precision=fp32",
  "precision=bf16 grad_reduce_in_fp32=true",
  "precision=bf16",
};

#define CHUNKS "virtual_pipeline_model_parallel_size=2 "
#define ASIDE "batch_p2p_comm=false overlap_p2p_comm=true "
static const char *const strategies[] = {
  "gpus=2",
  "gpus=4",
  "gpus=8",
  "gpus=1 micro_batch_size=2",
  "gpus=1 micro_batch_size=8",
  "gpus=2 micro_batch_size=4",
  "gpus=1 recompute_granularity=full recompute_method=uniform recompute_num_layers=2",
  "gpus=2 recompute_granularity=full recompute_method=block recompute_num_layers=3",
  "gpus=2 overlap_grad_reduce=true bucket_size=20000",
  "gpus=8 overlap_grad_reduce=true bucket_size=1",
  "gpus=2 average_in_collective=true",
  "gpus=1 calculate_per_token_loss=true",
  "gpus=4 pipeline_model_parallel_size=2 calculate_per_token_loss=true",
  "gpus=4 pipeline_model_parallel_size=4 calculate_per_token_loss=true",
  "gpus=4 use_distributed_optimizer=true overlap_grad_reduce=true calculate_per_token_loss=true",
  "gpus=2 use_distributed_optimizer=true",
  "gpus=4 use_distributed_optimizer=true overlap_grad_reduce=true bucket_size=30000",
  "gpus=8 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "
  "bucket_size=10000",
  "gpus=4 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "
  "pad_buckets_for_high_nccl_busbw=true",
  "gpus=4 use_distributed_optimizer=true num_distributed_optimizer_instances=2",
  "gpus=8 use_distributed_optimizer=true num_distributed_optimizer_instances=4 "
  "overlap_grad_reduce=true overlap_param_gather=true bucket_size=20000",
  "gpus=4 use_distributed_optimizer=true num_distributed_optimizer_instances=4 "
  "average_in_collective=true",
  "gpus=8 pipeline_model_parallel_size=2 use_distributed_optimizer=true overlap_grad_reduce=true "
  "num_distributed_optimizer_instances=2 average_in_collective=true",
  "gpus=1 check_for_nan_in_grad=true",
  "gpus=4 pipeline_model_parallel_size=2 use_distributed_optimizer=true overlap_grad_reduce=true "
  "check_for_nan_in_grad=true check_for_large_grads=true bucket_size=20000",
  "gpus=2 use_megatron_fsdp=true zero_dp_strategy=2 check_for_nan_in_grad=true",
  "gpus=2 pipeline_model_parallel_size=2",
  "gpus=4 pipeline_model_parallel_size=4",
  "gpus=4 pipeline_model_parallel_size=4 pipeline_schedule=gpipe",
  "gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=gpipe micro_batch_size=2",
  "gpus=4 pipeline_model_parallel_size=2 overlap_grad_reduce=true",
  "gpus=8 pipeline_model_parallel_size=2 use_distributed_optimizer=true overlap_grad_reduce=true "
  "overlap_param_gather=true bucket_size=20000",
  "gpus=8 pipeline_model_parallel_size=4 recompute_granularity=full recompute_method=uniform "
  "recompute_num_layers=1",
  "gpus=8 pipeline_model_parallel_size=8 micro_batch_size=1 "
  "deallocate_pipeline_outputs=true",
  "gpus=4 pipeline_model_parallel_size=4 batch_p2p_comm=false",
  "gpus=4 pipeline_model_parallel_size=4 batch_p2p_comm=false pipeline_schedule=gpipe",
  CHUNKS "gpus=4 pipeline_model_parallel_size=4",
  CHUNKS "gpus=4 pipeline_model_parallel_size=4 microbatch_group_size_per_vp_stage=8 "
         "batch_p2p_comm=false",
  CHUNKS "gpus=8 pipeline_model_parallel_size=4 " ASIDE,
  CHUNKS ASIDE "gpus=2 pipeline_model_parallel_size=2 overlap_p2p_comm_warmup_flush=true",
  ASIDE "gpus=4 pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=4 "
        "microbatch_group_size_per_vp_stage=4",
  CHUNKS "gpus=8 pipeline_model_parallel_size=4 use_distributed_optimizer=true "
         "overlap_grad_reduce=true overlap_param_gather=true bucket_size=10000",
  CHUNKS ASIDE "gpus=4 pipeline_model_parallel_size=2 overlap_grad_reduce=true "
               "delay_wgrad_compute=true bucket_size=10000",
  CHUNKS ASIDE "gpus=4 pipeline_model_parallel_size=2 use_megatron_fsdp=true zero_dp_strategy=3",
  CHUNKS ASIDE "gpus=4 pipeline_model_parallel_size=2 use_megatron_fsdp=true zero_dp_strategy=2 "
               "recompute_granularity=full recompute_method=uniform recompute_num_layers=1",
  "gpus=4 pipeline_model_parallel_size=4 variable_seq_lengths=true",
  "gpus=4 pipeline_model_parallel_size=4 batch_p2p_comm=false use_ring_exchange_p2p=true",
  "gpus=4 pipeline_model_parallel_size=4 pipeline_schedule=zb-v variable_seq_lengths=true",
  "gpus=4 pipeline_model_parallel_size=4 gradient_accumulation_fusion=true "
  "defer_embedding_wgrad_compute=true",
  CHUNKS "gpus=8 pipeline_model_parallel_size=4 gradient_accumulation_fusion=true "
         "defer_embedding_wgrad_compute=true wgrad_deferral_limit=2 overlap_grad_reduce=true "
         "bucket_size=10000",
  "gpus=4 pipeline_model_parallel_size=2 grad_sync_func=aligned overlap_grad_reduce=true "
  "bucket_size=10000",
  CHUNKS "gpus=8 pipeline_model_parallel_size=4 grad_sync_func=aligned overlap_grad_reduce=true "
         "use_distributed_optimizer=true overlap_param_gather=true align_param_gather=true",
  ASIDE "gpus=4 pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=4 "
        "grad_sync_func=aligned overlap_grad_reduce=true use_distributed_optimizer=true "
        "overlap_param_gather=true param_sync_func=aligned",
  CHUNKS ASIDE "gpus=4 pipeline_model_parallel_size=2 use_megatron_fsdp=true zero_dp_strategy=3 "
               "align_param_gather=true",
  ASIDE "gpus=4 pipeline_model_parallel_size=2 virtual_pipeline_model_parallel_size=4 "
        "use_megatron_fsdp=true zero_dp_strategy=2 overlap_grad_reduce=true "
        "overlap_param_gather=true align_param_gather=true",
  "gpus=4 pipeline_model_parallel_size=4 pipeline_schedule=zb-h1",
  "gpus=4 pipeline_model_parallel_size=4 pipeline_schedule=zb-h2 calculate_per_token_loss=true",
  "gpus=8 pipeline_model_parallel_size=4 pipeline_schedule=zb-h2 use_distributed_optimizer=true "
  "overlap_grad_reduce=true overlap_param_gather=true bucket_size=10000",
  "gpus=4 pipeline_model_parallel_size=2 pipeline_schedule=zb-h1 use_megatron_fsdp=true "
  "zero_dp_strategy=1 recompute_granularity=full recompute_method=uniform recompute_num_layers=2",
  "gpus=4 pipeline_model_parallel_size=4 pipeline_schedule=zb-v calculate_per_token_loss=true",
  "gpus=4 pipeline_model_parallel_size=2 pipeline_schedule=zb-v use_distributed_optimizer=true "
  "overlap_grad_reduce=true overlap_param_gather=true bucket_size=10000",
  "gpus=4 pipeline_model_parallel_size=2 pipeline_schedule=v-half overlap_grad_reduce=true",
  "gpus=4 pipeline_model_parallel_size=4 pipeline_schedule=v-min deallocate_pipeline_outputs=true",
  "gpus=4 pipeline_model_parallel_size=2 pipeline_schedule=dualpipe use_distributed_optimizer=true "
  "overlap_grad_reduce=true overlap_param_gather=true",
  "gpus=4 pipeline_model_parallel_size=4 pipeline_schedule=dualpipe calculate_per_token_loss=true",
  "gpus=2 pipeline_model_parallel_size=2 pipeline_schedule=dualpipe "
  "gradient_accumulation_fusion=true",
  "gpus=4 pipeline_model_parallel_size=2 pipeline_schedule=dualpipev average_in_collective=true",
  "gpus=4 pipeline_model_parallel_size=4 decoder_first_pipeline_num_layers=1 "
  "decoder_last_pipeline_num_layers=3",
  "gpus=10 pipeline_model_parallel_size=5 account_for_embedding_in_pipeline_split=true "
  "account_for_loss_in_pipeline_split=true use_distributed_optimizer=true",
  "gpus=4 pipeline_model_parallel_size=4 pipeline_model_parallel_layout=E|t*6|tt|L",
  "gpus=6 pipeline_model_parallel_size=3 pipeline_model_parallel_layout=Et|t|(tt|)*2,t|tL "
  "microbatch_group_size_per_vp_stage=4 "
  "use_megatron_fsdp=true zero_dp_strategy=3",
  "gpus=2 use_megatron_fsdp=true zero_dp_strategy=0",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3 calculate_per_token_loss=true",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=1 overlap_grad_reduce=true "
  "overlap_param_gather=true bucket_size=20000",
  "gpus=2 use_megatron_fsdp=true data_parallel_sharding_strategy=optim_grads",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=2 bucket_size=20000",
  "gpus=2 use_megatron_fsdp=true data_parallel_sharding_strategy=optim_grads_params",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3 fsdp_double_buffer=true",
  "gpus=8 use_megatron_fsdp=true zero_dp_strategy=3 suggested_communication_unit_size=1",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3 average_in_collective=true "
  "suggested_communication_unit_size=120000",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3 pipeline_model_parallel_size=2",
  "gpus=8 use_megatron_fsdp=true zero_dp_strategy=2 pipeline_model_parallel_size=2 "
  "pipeline_schedule=gpipe",
  "gpus=2 use_megatron_fsdp=true zero_dp_strategy=3 recompute_granularity=full "
  "recompute_method=uniform recompute_num_layers=2",
  "gpus=4 use_megatron_fsdp=true num_distributed_optimizer_instances=2 zero_dp_strategy=0",
  "gpus=8 use_megatron_fsdp=true num_distributed_optimizer_instances=4 zero_dp_strategy=1 "
  "overlap_grad_reduce=true overlap_param_gather=true bucket_size=20000",
  "gpus=4 use_megatron_fsdp=true num_distributed_optimizer_instances=2 zero_dp_strategy=2",
  "gpus=8 use_megatron_fsdp=true num_distributed_optimizer_instances=2 zero_dp_strategy=3 "
  "average_in_collective=true",
  "gpus=4 use_megatron_fsdp=true num_distributed_optimizer_instances=2 zero_dp_strategy=3 "
  "outer_dp_sharding_strategy=optim",
  "gpus=8 use_megatron_fsdp=true num_distributed_optimizer_instances=4 zero_dp_strategy=3 "
  "outer_dp_sharding_strategy=optim fsdp_double_buffer=true calculate_per_token_loss=true",
  "gpus=8 use_megatron_fsdp=true num_distributed_optimizer_instances=2 zero_dp_strategy=3 "
  "outer_dp_sharding_strategy=optim pipeline_model_parallel_size=2 "
  "suggested_communication_unit_size=1 check_for_nan_in_grad=true",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3 init_fsdp_with_meta_device=true "
  "megatron_fsdp_unit_modules=attention,mlp,embedding,head fsdp_double_buffer=true",
  "gpus=8 use_megatron_fsdp=true num_distributed_optimizer_instances=2 zero_dp_strategy=2 "
  "pipeline_model_parallel_size=2 pipeline_schedule=gpipe",
  "gpus=4 nccl_ub=true use_distributed_optimizer=true overlap_grad_reduce=true bucket_size=20000",
  "gpus=2 nccl_ub=true disable_symmetric_registration=true use_megatron_fsdp=true "
  "zero_dp_strategy=3 fsdp_double_buffer=true",
  "gpus=2 delay_wgrad_compute=true overlap_grad_reduce=true bucket_size=20000 enable_compile=true "
  "backend=gloo",
  "gpus=4 delay_wgrad_compute=true pipeline_model_parallel_size=4 activation_checkpointing=true",
  "gpus=8 delay_wgrad_compute=true pipeline_model_parallel_size=2 pipeline_schedule=gpipe "
  "use_distributed_optimizer=true overlap_grad_reduce=true bucket_size=20000",
  "gpus=4 delay_wgrad_compute=true pipeline_model_parallel_size=2 use_megatron_fsdp=true "
  "zero_dp_strategy=3 recompute_granularity=selective recompute_modules=mlp,layernorm",
  "gpus=1 recompute_granularity=selective recompute_modules=layernorm",
  "gpus=2 recompute_granularity=selective recompute_modules=mlp,core_attn",
  "gpus=2 activation_checkpointing=true",
  "gpus=4 activation_checkpointing=true use_megatron_fsdp=true zero_dp_strategy=3 "
  "fsdp_double_buffer=true",
  "gpus=1 optimizer_cpu_offload=true",
  "gpus=2 micro_batch_size=2 optimizer_cpu_offload=true optimizer_offload_fraction=0.37 "
  "overlap_cpu_optimizer_d2h_h2d=true",
  "gpus=4 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "
  "bucket_size=20000 optimizer_cpu_offload=true optimizer_offload_fraction=0.6",
  "gpus=4 use_distributed_optimizer=true optimizer_cpu_offload=true "
  "overlap_cpu_optimizer_d2h_h2d=true pin_cpu_grads=false",
  "gpus=2 use_megatron_fsdp=true zero_dp_strategy=1 optimizer_cpu_offload=true "
  "optimizer_offload_fraction=0.25",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=2 optimizer_cpu_offload=true "
  "overlap_cpu_optimizer_d2h_h2d=true optimizer_offload_fraction=0.5 pin_cpu_params=false",
  "gpus=4 use_megatron_fsdp=true zero_dp_strategy=3 optimizer_cpu_offload=true "
  "overlap_cpu_optimizer_d2h_h2d=true optimizer_offload_fraction=0.7",
  "gpus=8 pipeline_model_parallel_size=2 use_distributed_optimizer=true overlap_grad_reduce=true "
  "num_distributed_optimizer_instances=2 average_in_collective=true optimizer_cpu_offload=true "
  "overlap_cpu_optimizer_d2h_h2d=true optimizer_offload_fraction=0.9",
  "gpus=4 pipeline_model_parallel_size=2 calculate_per_token_loss=true optimizer_cpu_offload=true",
  "gpus=1 cpu_offloading=true cpu_offloading_num_layers=1",
  "gpus=2 cpu_offloading=true cpu_offloading_num_layers=3 use_distributed_optimizer=true "
  "optimizer_cpu_offload=true",
  "gpus=2 micro_batch_size=2 cpu_offloading=true cpu_offloading_num_layers=2 "
  "cpu_offloading_double_buffering=true",
  "gpus=4 cpu_offloading=true cpu_offloading_num_layers=3 cpu_offloading_double_buffering=true "
  "pipeline_schedule=gpipe",
  "gpus=4 cpu_offloading=true cpu_offloading_num_layers=2 use_megatron_fsdp=true "
  "zero_dp_strategy=3 overlap_grad_reduce=true",
  "gpus=2 context_parallel_size=2",
  "gpus=4 context_parallel_size=4 use_distributed_optimizer=true overlap_grad_reduce=true "
  "bucket_size=20000",
  "gpus=4 context_parallel_size=2 cp_comm_type=all_gather use_megatron_fsdp=true "
  "zero_dp_strategy=3",
  "gpus=8 context_parallel_size=2 cp_comm_type=a2a pipeline_model_parallel_size=2 "
  "use_megatron_fsdp=true zero_dp_strategy=2",
  "gpus=8 context_parallel_size=4 cp_comm_type=a2a+p2p hierarchical_context_parallel_sizes=2,2 "
  "average_in_collective=true",
  "gpus=4 context_parallel_size=2 cp_comm_type=all_gather recompute_granularity=full "
  "recompute_method=uniform recompute_num_layers=2",
  "gpus=4 context_parallel_size=4 calculate_per_token_loss=true delay_wgrad_compute=true "
  "recompute_granularity=selective recompute_modules=mlp,layernorm",
  "gpus=2 context_parallel_size=2 cp_comm_type=a2a cpu_offloading=true "
  "cpu_offloading_num_layers=2 optimizer_cpu_offload=true",
  "gpus=8 context_parallel_size=2 use_megatron_fsdp=true num_distributed_optimizer_instances=2 "
  "zero_dp_strategy=3 outer_dp_sharding_strategy=optim",
};

#define FSDP2 "distributed_config=fsdp2 "
static const char *const fsdp2[] = {
  FSDP2 "gpus=2",
  FSDP2 "gpus=4",
  FSDP2 "gpus=8",
  FSDP2 "gpus=1 micro_batch_size=2",
  FSDP2 "gpus=2 micro_batch_size=4",
  FSDP2 "gpus=2 defer_fsdp_grad_sync=false",
  FSDP2 "gpus=4 micro_batch_size=2 defer_fsdp_grad_sync=false",
  FSDP2 "gpus=2 pipeline_schedule=gpipe",
  FSDP2 "gpus=2 enable_fsdp2_prefetch=true fsdp2_forward_prefetch_depth=3 "
        "fsdp2_backward_prefetch_depth=1",
  FSDP2 "gpus=8 enable_fsdp2_prefetch=true fsdp2_forward_prefetch_depth=0 "
        "fsdp2_backward_prefetch_depth=4",
  FSDP2 "gpus=4 enable_fsdp2_prefetch=true fsdp2_backward_prefetch_depth=0 "
        "defer_fsdp_grad_sync=false",
  FSDP2 "gpus=4 pipeline_model_parallel_size=2",
  FSDP2 "gpus=8 pipeline_model_parallel_size=4",
  FSDP2 "gpus=4 pipeline_model_parallel_size=4",
  FSDP2 "gpus=8 pipeline_model_parallel_size=2 pipeline_schedule=gpipe",
  FSDP2 "gpus=4 pipeline_model_parallel_size=2 defer_fsdp_grad_sync=false",
  FSDP2 "gpus=4 dp_replicate_size=2",
  FSDP2 "gpus=8 dp_replicate_size=4 defer_fsdp_grad_sync=false",
  FSDP2 "gpus=8 dp_replicate_size=2 enable_fsdp2_prefetch=true",
  FSDP2 "gpus=2 recompute_granularity=full recompute_method=uniform recompute_num_layers=3",
  FSDP2 "gpus=8 pipeline_model_parallel_size=2 dp_replicate_size=2",
  FSDP2 "gpus=2 recompute_granularity=full recompute_method=uniform recompute_num_layers=1",
  FSDP2 "gpus=4 recompute_granularity=full recompute_method=uniform recompute_num_layers=2",
  FSDP2 "gpus=2 recompute_granularity=full recompute_method=block recompute_num_layers=3 "
        "enable_fsdp2_prefetch=true",
  FSDP2 "gpus=4 pipeline_model_parallel_size=2 recompute_granularity=full "
        "recompute_method=uniform recompute_num_layers=2",
  FSDP2 "gpus=2 offload_policy=cpu",
  FSDP2 "gpus=4 offload_policy=cpu offload_policy_pin_memory=false",
  FSDP2 "gpus=2 offload_policy=cpu defer_fsdp_grad_sync=false",
  FSDP2 "gpus=4 offload_policy=cpu defer_fsdp_grad_sync=false offload_policy_pin_memory=false "
        "enable_fsdp2_prefetch=true",
  FSDP2 "gpus=8 offload_policy=cpu dp_replicate_size=2 defer_fsdp_grad_sync=false",
  FSDP2 "gpus=4 offload_policy=cpu pipeline_model_parallel_size=2 defer_fsdp_grad_sync=false",
  FSDP2 "gpus=4 context_parallel_size=2 cp_comm_type=a2a",
  FSDP2 "gpus=8 context_parallel_size=2 dp_replicate_size=2 defer_fsdp_grad_sync=false",
  FSDP2 "gpus=4 context_parallel_size=4 cp_comm_type=all_gather enable_fsdp2_prefetch=true",
};

#define DDP "distributed_config=ddp "
static const char *const torch_ddp[] = {
  DDP "gpus=2",
  DDP "gpus=4",
  DDP "gpus=8",
  DDP "gpus=2 micro_batch_size=4",
  DDP "gpus=4 context_parallel_size=2 cp_comm_type=all_gather",
  DDP "gpus=4 pipeline_model_parallel_size=2",
  DDP "gpus=8 pipeline_model_parallel_size=4 pipeline_schedule=gpipe",
  DDP "gpus=2 recompute_granularity=full recompute_method=uniform recompute_num_layers=2",
};

/* `one`: the precision of the run on one rank. `other`: the settings with which other strategies
 * add gradients in the same type. */
struct precision {
  const char *one, *other;
};
static const struct precision fsdp2_precisions[] = {
  { "precision=fp32", "precision=fp32" },
  { "precision=bf16 grad_reduce_in_fp32=true", "precision=bf16" },
  { "precision=bf16", "precision=bf16 mp_policy_reduce_dtype=bf16" },
  { "precision=bf16", "precision=bf16 mp_policy_reduce_dtype=bf16 mp_policy_output_dtype=bf16" },
};
static const struct precision ddp_precisions[] = {
  { "precision=fp32", "precision=fp32" },
  { "precision=bf16", "precision=bf16" },
};

/* Strategies that add bf16 gradients in fp32 and round once. The results differ in the last bits
 * from those of one rank, whose sums are rounded at every node of the tree. */
static const char *const fp32_sums[] = {
  "gpus=4 use_distributed_optimizer=true reduce_scatter_with_fp32_accumulation=true",
  "gpus=8 pipeline_model_parallel_size=2 use_distributed_optimizer=true overlap_grad_reduce=true "
  "overlap_param_gather=true bucket_size=20000 reduce_scatter_with_fp32_accumulation=true",
};

static void
check (const char *words, const struct real_result *one, struct real_run run)
{
  run.words = words;
  run.steps = STEPS;
  weft_test_check_run (&run, one);
}

struct table {
  const char *const *row;
  unsigned n, first, stride;
};

/* Whether a strategy has other bits than one rank in fp16. There are two reasons. An offloaded
 * optimizer divides gradients by the loss scale in fp32. Other strategies divide gradients by the
 * number of replicas or tokens later than one rank does, so fewer gradients become so small that
 * fp16 loses bits. */
static gboolean
is_other_in_fp16 (const struct precision *precision, const char *strategy)
{
  if (!strstr (precision->one, "precision=fp16"))
    return FALSE;
  return strstr (strategy, "average_in_collective") ||
         strstr (strategy, "calculate_per_token_loss") ||
         (strstr (strategy, "optimizer_cpu_offload=true") &&
          !strstr (precision->one, "grad_reduce_in_fp32"));
}

static void
check_table (const char *model, const struct precision *precision, const struct table *table)
{
  struct real_result one =
      weft_test_run_words (model, precision->one, "gpus=1", (struct real_run){ .steps = STEPS });

  assert_true (isfinite (one.loss[STEPS - 1]) && one.loss[STEPS - 1] < one.loss[0]);
  for (unsigned s = table->first; s < table->n; s += table->stride) {
    if (is_other_in_fp16 (precision, table->row[s]))
      continue;
    g_autofree char *words = weft_test_cpu_words (model, precision->other, table->row[s]);
    check (words, &one, (struct real_run){ .poison = TRUE, .threads = s % SHARING == 0 ? 2 : 1 });
  }
}

static void
check_strategies (const char *model, const char *precision, unsigned first, unsigned step)
{
  check_table (model, &(struct precision){ precision, precision },
               &(struct table){ strategies, G_N_ELEMENTS (strategies), first, step });
}

static unsigned
stride (void)
{
  return every_combination ? 1 : SANITIZED ? 10 : weft_tests_cases (5, 3);
}

/* Index of the first strategy that runs with a model in one precision. */
static unsigned
first_of (unsigned model, unsigned precision)
{
  return (APART * model + precision) % stride ();
}

/* Runs every strategy in each precision on a small model, and a third of them (with `./weft test
 * --long`: all) on one nano model. */
static void
every_strategy_gives_the_bits_of_one_rank (void **state)
{
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (nanos); m++) {
    check_strategies (nanos[m], precisions[0], m, NANOS_RARELY * G_N_ELEMENTS (nanos));
    check_strategies (nanos[m], precisions[2], 0, NANOS_RARELY * SHARING);
  }
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned p = 0; p < G_N_ELEMENTS (precisions); p++)
      check_strategies (models[m], precisions[p], first_of (m, p), stride ());
}

static void
fp16_gives_the_bits_of_one_rank (void **state)
{
  static const char *const halves[] = { "precision=fp16 loss_scale=2048",
                                        "precision=fp16 grad_reduce_in_fp32=true" };
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned p = 0; p < G_N_ELEMENTS (halves); p++)
      check_strategies (models[m], halves[p], m + 5 * p, RARELY * 2 * SHARING);
}

/* Runs every FSDP2 strategy in each precision on a small model, and some on the nano models. */
static void
fsdp2_gives_the_bits_of_one_rank (void **state)
{
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned p = 0; p < G_N_ELEMENTS (fsdp2_precisions); p++)
      check_table (models[m], &fsdp2_precisions[p],
                   &(struct table){ fsdp2, G_N_ELEMENTS (fsdp2), first_of (m, p), stride () });
  for (unsigned m = 0; m < G_N_ELEMENTS (nanos); m++)
    for (unsigned p = 0; p < G_N_ELEMENTS (fsdp2_precisions); p++)
      check_table (nanos[m], &fsdp2_precisions[p],
                   &(struct table){ fsdp2, G_N_ELEMENTS (fsdp2), m + p, 8 * NANOS_RARELY });
}

static void
torch_ddp_gives_the_bits_of_one_rank (void **state)
{
  (void) state;
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    for (unsigned p = 0; p < G_N_ELEMENTS (ddp_precisions); p++)
      check_table (models[m], &ddp_precisions[p],
                   &(struct table){ torch_ddp, G_N_ELEMENTS (torch_ddp), first_of (m, p),
                                    stride () });
  for (unsigned m = 0; m < G_N_ELEMENTS (nanos); m++)
    check_table (nanos[m], &ddp_precisions[m],
                 &(struct table){ torch_ddp, G_N_ELEMENTS (torch_ddp), m, 2 * NANOS_RARELY });
}

static void
slices_summed_in_fp32_have_the_bits_of_one_rank_where_gradients_are_fp32 (void **state)
{
  (void) state;
  for (unsigned p = 0; p < 2; p++)
    for (unsigned s = 0; s < G_N_ELEMENTS (fp32_sums); s++) {
      struct real_result one = weft_test_run_words (models[0], precisions[p], "gpus=1",
                                                    (struct real_run){ .steps = STEPS });
      g_autofree char *words = weft_test_cpu_words (models[0], precisions[p], fp32_sums[s]);
      check (words, &one, (struct real_run){ .poison = TRUE });
    }
}

/* With autocast, matmuls round to bf16, so the bits differ from those without; but all strategies
 * with autocast must have the same bits. */
static void
enable_autocast_gives_the_bits_of_one_rank (void **state)
{
  static const char autocast[] = "precision=fp32 enable_autocast=true autocast_dtype=bf16";
  struct real_result plain = weft_test_run_words (models[0], "precision=fp32", "gpus=1",
                                                  (struct real_run){ .steps = STEPS });
  struct real_result cast =
      weft_test_run_words (models[0], autocast, "gpus=1", (struct real_run){ .steps = STEPS });

  (void) state;
  assert_false (weft_test_same_bits (&plain, &cast, STEPS));
  assert_true (fabs (plain.loss[0] - cast.loss[0]) < 0.01 * plain.loss[0]);
  for (unsigned m = 0; m < G_N_ELEMENTS (models); m++)
    check_strategies (models[m], autocast, m, RARELY * 2 * SHARING);
}

/* In canonical order every microbatch has a gradient of its own, with or without
 * gradient_accumulation_fusion, so the knob must change no bit. */
static void
fused_accumulation_makes_no_difference_in_canonical_order (void **state)
{
  static const char fused[] = "precision=bf16 gradient_accumulation_fusion=true",
                    unfused[] = "precision=bf16 gradient_accumulation_fusion=false";
  struct real_result one =
      weft_test_run_words (models[0], fused, "gpus=1", (struct real_run){ .steps = STEPS });

  (void) state;
  for (unsigned s = 0; s < G_N_ELEMENTS (strategies); s += 4) {
    g_autofree char *words = weft_test_cpu_words (models[0], unfused, strategies[s]);
    check (words, &one, (struct real_run){ 0 });
  }
}

static void
random_interleavings_give_the_same_bits (void **state)
{
  static const char *const some[] = {
    "gpus=4 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true "
    "bucket_size=10000",
    "gpus=4 pipeline_model_parallel_size=2 overlap_grad_reduce=true bucket_size=10000",
  };
  (void) state;
  for (unsigned m = 0; m < 3; m += 2)
    for (unsigned s = 0; s < G_N_ELEMENTS (some); s++) {
      struct real_result one = weft_test_run_words (models[m], "precision=fp32", "gpus=1",
                                                    (struct real_run){ .steps = STEPS });
      g_autofree char *words = weft_test_cpu_words (models[m], "precision=fp32", some[s]);
      for (uint64_t seed = 1; seed <= SEEDS; seed++)
        check (words, &one, (struct real_run){ .stress = seed, .poison = TRUE });
    }
}

/* In fast order, rounding depends on the strategy: results are near those of one rank, and equal
 * every time. */
static void
fast_order_is_close_and_the_same_every_time (void **state)
{
  static const char *const some[] = {
    "gpus=1",
    "gpus=3 global_batch_size=12",
    "gpus=4",
    "gpus=4 pipeline_model_parallel_size=2",
    "gpus=8 use_distributed_optimizer=true overlap_grad_reduce=true overlap_param_gather=true",
    "gpus=2 micro_batch_size=2 gradient_accumulation_fusion=false",
    "gpus=2 average_in_collective=true",
  };
  (void) state;
  struct real_result one = weft_test_run_words (models[0], "precision=fp32", "gpus=1",
                                                (struct real_run){ .steps = STEPS });
  for (unsigned s = 0; s < G_N_ELEMENTS (some); s++) {
    g_autofree char *words = g_strconcat (some[s], " reduction_order=fast", NULL);
    struct real_result a = weft_test_run_words (
        models[0], "precision=fp32", words, (struct real_run){ .steps = STEPS, .poison = TRUE });
    struct real_result b = weft_test_run_words (models[0], "precision=fp32", words,
                                                (struct real_run){ .steps = STEPS, .stress = 3 });
    assert_true (weft_test_same_bits (&a, &b, STEPS));
    if (strstr (some[s], "batch"))
      continue;
    assert_true (weft_test_is_near (&a, &one, STEPS));
  }
}

static void
more_ranks_than_cores_do_not_get_stuck (void **state)
{
  (void) state;
  struct real_result many =
      weft_test_run_words ("model=llama-nano seq_length=8 global_batch_size=64", "precision=fp32",
                           "gpus=64", (struct real_run){ .steps = STEPS });
  struct real_result one =
      weft_test_run_words ("model=llama-nano seq_length=8 global_batch_size=64", "precision=fp32",
                 "gpus=1 micro_batch_size=16", (struct real_run){ .steps = STEPS });
  assert_true (weft_test_same_bits (&one, &many, STEPS));
}

static int
read_stride (int argc, char **argv)
{
  if (argc > 1 && g_str_equal (argv[1], "all"))
    every_combination = TRUE;
  return WEFT_TESTS_RUN;
}

static const struct CMUnitTest tests[] = {
  cmocka_unit_test (every_strategy_gives_the_bits_of_one_rank),
  cmocka_unit_test (fp16_gives_the_bits_of_one_rank),
  cmocka_unit_test (fsdp2_gives_the_bits_of_one_rank),
  cmocka_unit_test (torch_ddp_gives_the_bits_of_one_rank),
  cmocka_unit_test (slices_summed_in_fp32_have_the_bits_of_one_rank_where_gradients_are_fp32),
  cmocka_unit_test (enable_autocast_gives_the_bits_of_one_rank),
  cmocka_unit_test (fused_accumulation_makes_no_difference_in_canonical_order),
  cmocka_unit_test (random_interleavings_give_the_same_bits),
  cmocka_unit_test (fast_order_is_close_and_the_same_every_time),
  cmocka_unit_test (more_ranks_than_cores_do_not_get_stuck),
};

WEFT_TESTS (tests, .seconds = 40, .begin = read_stride)
