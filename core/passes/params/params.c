/* Lists the tensors of a pipeline stage in registration order, with their places in flat buffers of
 * weights and gradients. Each model chunk has one pair of flat buffers (weights, gradients) for
 * each combination of dtypes, and another pair for experts. core/program/layout.h describes the
 * order of tensors in a flat buffer. */
#include "core/passes/params/tensors.h"
#include <string.h>

/* Size of a tensor on this rank. rows is 0 if the model does not have the tensor. Tensor parallel
 * ranks divide linear layers by heads or by the width of the MLP, and embeddings by the
 * vocabulary. */
struct extent {
  uint64_t rows, columns;
  enum weft_cut cut;
  /* tail: number of rows of each of the last two blocks of [q | k | v] or [gate | up]; 0: no blocks
   * (struct weft_param in program.h) */
  uint64_t tail;
  uint64_t whole_rows; /* rows of the whole tensor without padding; 0: the tensor has no padding */
  uint64_t block;      /* for expert weights: rows of one expert; otherwise 0 */
  /* TRUE: few architectures have the tensor, and only their programs store the tensor's name.
   * FALSE: all programs store the name */
  gboolean trait;
};

static struct extent
layer_extent (const struct weft_step *s, uint32_t layer, enum weft_layer_param which)
{
  const union weft_model *m = s->model;
  const struct weft_widths *w = &s->width;
  uint64_t experts = weft_model_layer_is_moe (m, layer) ? m->num_moe_experts : 0;
  uint64_t wide = weft_model_wide (m), ffn = m->moe_ffn_hidden_size / s->mesh->etp;
  uint64_t own = experts / s->mesh->ep, shared = experts ? w->shared : 0;
  uint64_t h = m->hidden_size, kv = m->num_query_groups * m->kv_channels / s->mesh->tp,
           gate = w->up - w->f;
  uint64_t up = experts ? 0 : w->up, down = experts ? 0 : h;
  uint64_t norm_bias = m->normalization == WEFT_LAYERNORM ? h : 0;
  uint64_t rank = m->kv_lora_rank, q_rank = m->q_lora_rank;
  uint64_t head_norm = m->qk_layernorm && !rank ? m->kv_channels : 0;
  uint64_t q_norm = head_norm * (m->qk_layernorm_whole ? w->heads : 1),
           k_norm = head_norm * (m->qk_layernorm_whole ? w->groups : 1);
  gboolean sandwich = m->norm_placement == WEFT_NORM_SANDWICH,
           one = m->residual == WEFT_RESIDUAL_ONE_NORM;
  gboolean mtp = layer >= m->num_layers;
  uint64_t joint = mtp ? h : 0, joint_bias = mtp ? norm_bias : 0;
  const struct extent table[WEFT_N_LAYER_PARAM] = {
    [WEFT_MTP_WORDS_NORM_WEIGHT] = { joint, 1 },
    [WEFT_MTP_WORDS_NORM_BIAS] = { joint_bias, 1 },
    [WEFT_MTP_STREAM_NORM_WEIGHT] = { joint, 1 },
    [WEFT_MTP_STREAM_NORM_BIAS] = { joint_bias, 1 },
    [WEFT_MTP_PROJ_WEIGHT] = { joint / s->mesh->tp, 2 * h, WEFT_CUT_ROWS },
    [WEFT_MTP_NORM_WEIGHT] = { joint, 1 },
    [WEFT_MTP_NORM_BIAS] = { joint_bias, 1 },
    [WEFT_NORM1_WEIGHT] = { h, 1 },
    [WEFT_NORM1_BIAS] = { norm_bias, 1 },
    [WEFT_QKV_WEIGHT] = { rank ? 0 : w->made, h, WEFT_CUT_ROWS, kv },
    [WEFT_QKV_BIAS] = { m->add_qkv_bias && !rank ? w->made : 0, 1, WEFT_CUT_ROWS, kv },
    [WEFT_Q_NORM_WEIGHT] = { q_norm, 1 },
    [WEFT_K_NORM_WEIGHT] = { k_norm, 1 },
    [WEFT_PROJ_WEIGHT] = { h, w->own, WEFT_CUT_COLUMNS },
    [WEFT_PROJ_BIAS] = { m->add_bias_linear ? h : 0, 1 },
    [WEFT_ATTENTION_NORM_WEIGHT] = { sandwich ? h : 0, 1, .trait = TRUE },
    [WEFT_ATTENTION_NORM_BIAS] = { sandwich ? norm_bias : 0, 1, .trait = TRUE },
    [WEFT_NORM2_WEIGHT] = { one ? 0 : h, 1 },
    [WEFT_NORM2_BIAS] = { one ? 0 : norm_bias, 1 },
    [WEFT_FC1_WEIGHT] = { up, h, WEFT_CUT_ROWS, gate },
    [WEFT_FC1_BIAS] = { m->add_bias_linear ? up : 0, 1, WEFT_CUT_ROWS, gate },
    [WEFT_FC2_WEIGHT] = { down, w->f, WEFT_CUT_COLUMNS },
    [WEFT_FC2_BIAS] = { m->add_bias_linear ? down : 0, 1 },
    [WEFT_MLP_NORM_WEIGHT] = { sandwich ? h : 0, 1, .trait = TRUE },
    [WEFT_MLP_NORM_BIAS] = { sandwich ? norm_bias : 0, 1, .trait = TRUE },
    [WEFT_Q_DOWN_WEIGHT] = { rank ? q_rank : 0, h },
    [WEFT_Q_LATENT_NORM_WEIGHT] = { rank ? q_rank : 0, 1 },
    [WEFT_Q_LATENT_NORM_BIAS] = { rank && norm_bias ? q_rank : 0, 1 },
    [WEFT_Q_UP_WEIGHT] = { rank ? w->heads * m->kv_channels : 0, q_rank ? q_rank : h,
                           WEFT_CUT_ROWS },
    [WEFT_KV_DOWN_WEIGHT] = { rank ? rank + m->qk_pos_emb_head_dim : 0, h },
    [WEFT_KV_LATENT_NORM_WEIGHT] = { rank, 1 },
    [WEFT_KV_LATENT_NORM_BIAS] = { norm_bias ? rank : 0, 1 },
    [WEFT_KV_UP_WEIGHT] = { rank ? w->heads * (m->qk_head_dim + m->v_head_dim) : 0, rank,
                            WEFT_CUT_ROWS },
    [WEFT_ROUTER_WEIGHT] = { experts, h },
    [WEFT_EXPERT_FC1] = { own * wide * ffn, h, WEFT_CUT_ROWS, (wide - 1) * ffn, 0, wide * ffn },
    [WEFT_EXPERT_FC2] = { own * h, ffn, WEFT_CUT_COLUMNS, 0, 0, h },
    [WEFT_SHARED_FC1_WEIGHT] = { wide * shared, h, WEFT_CUT_ROWS, (wide - 1) * shared },
    [WEFT_SHARED_FC2_WEIGHT] = { shared ? h : 0, shared, WEFT_CUT_COLUMNS },
    [WEFT_SHARED_GATE_WEIGHT] = { shared && m->moe_shared_expert_gate ? 1 : 0, h },
  };
  return table[which];
}

static const struct {
  enum weft_layer_param base;
  struct weft_lora_pair pair;
} adapters[WEFT_N_LORA] = {
  [WEFT_LORA_QKV] = { WEFT_QKV_WEIGHT, { WEFT_QKV_LORA_A, WEFT_QKV_LORA_B } },
  [WEFT_LORA_PROJ] = { WEFT_PROJ_WEIGHT, { WEFT_PROJ_LORA_A, WEFT_PROJ_LORA_B } },
  [WEFT_LORA_FC1] = { WEFT_FC1_WEIGHT, { WEFT_FC1_LORA_A, WEFT_FC1_LORA_B } },
  [WEFT_LORA_FC2] = { WEFT_FC2_WEIGHT, { WEFT_FC2_LORA_A, WEFT_FC2_LORA_B } },
};

gboolean
weft_params_is_lora (enum weft_layer_param which)
{
  return which >= WEFT_QKV_LORA_A && which <= WEFT_FC2_LORA_B;
}

struct weft_lora_pair
weft_params_lora (const struct weft_step *s, enum weft_layer_param which)
{
  uint32_t set = weft_job_lora (s->job, NULL);

  for (int i = 0; i < WEFT_N_LORA; i++)
    if (adapters[i].base == which && (set >> i & 1))
      return adapters[i].pair;
  return (struct weft_lora_pair){ WEFT_N_LAYER_PARAM, WEFT_N_LAYER_PARAM };
}

/* Size of a matrix of an adapter. Tensor parallel ranks divide an adapter like its linear map: if
 * they divide the rows of the weight W, they divide the rows of B, and every rank has the whole of
 * A; if they divide the columns of W, they divide the columns of A, and every rank has the whole of
 * B (the division of Hugging Face PEFT, tuners/lora/tp_layer.py). */
static struct extent
adapter_extent (const struct weft_step *s, uint32_t layer, enum weft_layer_param which)
{
  int i = (which - WEFT_QKV_LORA_A) / 2;
  struct extent base = layer_extent (s, layer, adapters[i].base);
  uint64_t rank = (uint64_t) s->job->train.lora_dim;
  gboolean by_rows = base.cut == WEFT_CUT_ROWS;

  if (!(weft_job_lora (s->job, NULL) >> i & 1))
    return (struct extent){ .trait = TRUE };
  if (which == adapters[i].pair.a)
    return (struct extent){ .rows = rank,
                            .columns = base.columns,
                            .cut = by_rows ? WEFT_CUT_NONE : WEFT_CUT_COLUMNS,
                            .trait = TRUE };
  return (struct extent){ .rows = base.rows,
                          .columns = rank,
                          .cut = by_rows ? WEFT_CUT_ROWS : WEFT_CUT_NONE,
                          .tail = by_rows ? base.tail : 0,
                          .trait = TRUE };
}

static struct extent
end_extent (const struct weft_step *s, enum weft_end_param which)
{
  const union weft_model *m = s->model;
  uint64_t h = m->hidden_size, v = s->width.vocab, all = m->vocab_size;
  gboolean first = weft_step_has_embedding (s), last = weft_step_has_head (s);
  gboolean norm = m->embedding_layernorm, centred = m->normalization == WEFT_LAYERNORM;
  gboolean tied = m->share_embeddings_and_output_weights, words = last && m->mtp_num_layers > 0;
  const struct extent table[WEFT_N_END_PARAM] = {
    [WEFT_EMBED_WEIGHT] = { first || words ? v : 0, h, WEFT_CUT_ROWS, 0, all },
    [WEFT_POSITION_WEIGHT] = { first && m->position_embedding_type == WEFT_LEARNED
                                   ? (uint64_t) (m->max_position_embeddings + m->position_offset)
                                   : 0,
                               h },
    [WEFT_EMBED_NORM_WEIGHT] = { first && norm ? h : 0, 1, .trait = TRUE },
    [WEFT_EMBED_NORM_BIAS] = { first && norm && centred ? h : 0, 1, .trait = TRUE },
    [WEFT_FINAL_NORM_WEIGHT] = { last ? h : 0, 1 },
    [WEFT_FINAL_NORM_BIAS] = { last && m->normalization == WEFT_LAYERNORM ? h : 0, 1 },
    [WEFT_HEAD_WEIGHT] = { last && !(tied && first) ? v : 0, h, WEFT_CUT_ROWS, 0, all },
  };
  return table[which];
}

static void
set_cut (struct weft_param *param, const struct extent *size, const struct weft_mesh *mesh)
{
  uint32_t ways = mesh->tp;
  gboolean shared = size->cut != WEFT_CUT_NONE && ways > 1;
  uint64_t rows = size->rows * (size->cut == WEFT_CUT_ROWS ? ways : 1);

  param->ways = shared ? ways : 1;
  param->whole_rows = size->whole_rows ? size->whole_rows : rows;
  param->whole_columns = size->columns * (size->cut == WEFT_CUT_COLUMNS ? ways : 1);
  if (!shared && param->whole_rows == size->rows)
    return;
  param->cut = size->cut;
  param->tail = size->tail;
  param->group = WEFT_GROUP_TP;
}

/* Sets the expert parallel division of an expert weight: each rank has whole experts, or expert
 * tensor parallel ranks also divide each expert. */
static void
set_blocks (struct weft_param *param, const struct extent *size, const struct weft_mesh *mesh)
{
  gboolean by_rows = size->cut == WEFT_CUT_ROWS;
  uint64_t ways = (uint64_t) mesh->ep * mesh->etp;

  param->whole_rows = size->rows * (by_rows ? ways : mesh->ep);
  param->whole_columns = size->columns * (by_rows ? 1 : mesh->etp);
  param->ways = (uint32_t) ways;
  if (ways == 1 && !weft_mesh_deals_experts (mesh))
    return;
  param->cut = size->cut;
  param->tail = size->tail;
  param->block = size->block;
  param->inner = mesh->etp;
  param->group = weft_mesh_deals_experts (mesh) ? WEFT_GROUP_TP_EP : WEFT_GROUP_TP;
}

/* Name of a tensor, and the part that freezes it (WEFT_N_FREEZE: none does). */
struct registered {
  const char *name;
  enum weft_freeze part;
};

static uint32_t
add_param (struct weft_step *s, const struct registered *tensor, uint32_t layer, struct extent size)
{
  gboolean adapter = tensor->part == WEFT_N_FREEZE;

  if (size.trait && size.rows == 0)
    return WEFT_NO_PARAM;
  struct weft_param row = { .name = weft_build_name (s->b, tensor->name),
                            .layer = layer,
                            .chunk = s->at.chunk,
                            .duplicate = weft_step_chunk (s)->copy > 0,
                            .decay = size.columns > 1 || adapter,
                            .frozen = !adapter && !weft_job_trains (s->job, tensor->part),
                            .rows = size.rows,
                            .columns = size.columns,
                            .scale = WEFT_NO_BUF };

  if (size.rows == 0)
    return WEFT_NO_PARAM;
  (size.block ? set_blocks : set_cut) (&row, &size, s->mesh);
  g_array_append_val (s->params->list, row);
  return weft_params_count (s) - 1;
}

static void
add_end (struct weft_step *s, enum weft_end_param which)
{
  static const struct registered tensors[] = {
#define WEFT_PARAM_ROW(id, name, part) [id] = { name, part },
    WEFT_END_PARAM_LIST (WEFT_PARAM_ROW)
#undef WEFT_PARAM_ROW
  };
  s->params->of_end[which] = add_param (s, &tensors[which], WEFT_NO_LAYER, end_extent (s, which));
}

static void
add_layer_tensors (struct weft_step *s, uint32_t layer, int first, int end)
{
  static const struct registered tensors[] = {
#define WEFT_PARAM_ROW(id, name, part) [id] = { name, part },
    WEFT_LAYER_PARAM_LIST (WEFT_PARAM_ROW)
#undef WEFT_PARAM_ROW
  };
  uint32_t *param = &s->params->of_layer[weft_step_slot (s, layer) * WEFT_N_LAYER_PARAM];

  for (int which = first; which < end; which++)
    param[which] =
        add_param (s, &tensors[which], layer,
                   (weft_params_is_lora (which) ? adapter_extent : layer_extent) (s, layer, which));
}

/* Registers the tensors of a layer. Tensors of multi-latent attention come before the MLP, as in
 * Megatron-Core (transformer_layer.py): the tensors of attention are then consecutive, and can form
 * an FSDP unit of Megatron-FSDP. */
static void
add_layer (struct weft_step *s, uint32_t layer)
{
  gboolean latent = s->model->kv_lora_rank > 0;

  add_layer_tensors (s, layer, 0, WEFT_NORM2_WEIGHT);
  if (latent)
    add_layer_tensors (s, layer, WEFT_Q_DOWN_WEIGHT, WEFT_ROUTER_WEIGHT);
  add_layer_tensors (s, layer, WEFT_NORM2_WEIGHT,
                     latent ? WEFT_Q_DOWN_WEIGHT : WEFT_ROUTER_WEIGHT);
  add_layer_tensors (s, layer, WEFT_ROUTER_WEIGHT, WEFT_N_LAYER_PARAM);
}

/* Whether the chunk needs its own copy of the embedding. TRUE if the chunk has multi-token
 * prediction, which reads the embedding, and the rank does not hold the first stage. */
static gboolean
copies_embedding (const struct weft_step *s)
{
  return weft_step_chunk (s)->n_mtp > 0 && !weft_step_has_embedding (s);
}

/* Registers the tensors after the layers of the last stage: final norm, multi-token prediction,
 * output layer. */
static void
add_head (struct weft_step *s)
{
  const struct weft_chunk *chunk = weft_step_chunk (s);

  add_end (s, WEFT_FINAL_NORM_WEIGHT);
  add_end (s, WEFT_FINAL_NORM_BIAS);
  for (uint32_t d = 0; d < chunk->n_mtp; d++)
    add_layer (s, s->model->num_layers + d);
  add_end (s, WEFT_HEAD_WEIGHT);
}

/* Registers the tensors of each model chunk, in the order embeddings, layers, final norm,
 * multi-token prediction, output layer. */
static void
list_params (struct weft_step *s)
{
  for (int which = 0; which < WEFT_N_END_PARAM; which++)
    s->params->of_end[which] = WEFT_NO_PARAM;
  for (s->at.chunk = 0; s->at.chunk < s->n_chunks; s->at.chunk++) {
    const struct weft_chunk *chunk = weft_step_chunk (s);
    for (int which = WEFT_EMBED_WEIGHT; which <= WEFT_EMBED_NORM_BIAS && chunk->embedding; which++)
      add_end (s, which);
    if (copies_embedding (s))
      add_end (s, WEFT_EMBED_WEIGHT);
    for (uint32_t l = 0; l < chunk->n_layers; l++)
      add_layer (s, chunk->first_layer + l);
    if (chunk->head)
      add_head (s);
  }
  s->at.chunk = 0;
}

static void
mark (struct weft_step *s, uint32_t param, gboolean copy)
{
  if (param == WEFT_NO_PARAM)
    return;
  struct weft_param *row = weft_param_at (s, param);
  row->tied = 1;
  row->duplicate |= copy;
}

/* Marks this stage's copy of the embedding as tied. The first and the last stage both hold a copy
 * if the output layer shares the weight, or if multi-token prediction reads it. Sums over all
 * stages, such as the gradient norm, omit the copy on the last stage. */
static void
mark_tied (struct weft_step *s)
{
  if (!weft_step_shares_embedding (s))
    return;
  mark (s, s->params->of_end[WEFT_EMBED_WEIGHT], !weft_step_has_embedding (s));
  if (s->model->share_embeddings_and_output_weights)
    mark (s, s->params->of_end[WEFT_HEAD_WEIGHT], TRUE);
}

static uint64_t
threshold (const struct weft_step *s, uint32_t replicas)
{
  if (!s->strategy->overlap_grad_reduce || s->role > 0 || s->strategy->disable_bucketing ||
      s->mesh->mirror)
    return WEFT_BUCKET_INFINITE;
  if (s->strategy->bucket_size != WEFT_NONE)
    return s->strategy->bucket_size;
  return weft_layout_default_threshold (replicas);
}

gboolean
weft_params_is_expert (const struct weft_step *s, uint32_t param)
{
  const struct weft_param *row = weft_param_at (s, param);

  return row->layer != WEFT_NO_LAYER &&
         (weft_params_of_layer (s, row->layer, WEFT_EXPERT_FC1) == param ||
          weft_params_of_layer (s, row->layer, WEFT_EXPERT_FC2) == param);
}

gboolean
weft_params_is_fp8 (const struct weft_step *s, uint32_t param)
{
  static const enum weft_layer_param matrices[] = { WEFT_QKV_WEIGHT, WEFT_PROJ_WEIGHT,
                                                    WEFT_FC1_WEIGHT, WEFT_FC2_WEIGHT };
  uint32_t layer = weft_param_at (s, param)->layer;

  if (!s->strategy->fp8_param_gather || layer == WEFT_NO_LAYER)
    return FALSE;
  for (size_t i = 0; i < G_N_ELEMENTS (matrices); i++)
    if (weft_params_of_layer (s, layer, matrices[i]) == param)
      return TRUE;
  return FALSE;
}

/* Weights of experts that every rank holds whole are treated like dense weights. */
gboolean
weft_params_is_sharded_expert (const struct weft_step *s, uint32_t param)
{
  return weft_mesh_deals_experts (s->mesh) && weft_params_is_expert (s, param);
}

enum weft_optimizer
weft_params_rule (const struct weft_step *s, uint32_t param)
{
  const struct weft_param *row = weft_param_at (s, param);
  uint64_t large = (uint64_t) s->job->train.min_8bit_size;

  switch (s->job->train.optimizer) {
  case WEFT_MUON:
    return row->layer != WEFT_NO_LAYER && row->columns > 1 ? WEFT_MUON : WEFT_ADAM;
  case WEFT_ADAMW_8BIT:
    return row->rows * row->columns >= large ? WEFT_ADAMW_8BIT : WEFT_ADAM;
  default:
    return WEFT_ADAM;
  }
}

/* Returns the dtype in which the flat buffer stores a weight. */
static enum weft_dtype
storage (const struct weft_step *s, uint32_t param)
{
  return weft_params_is_fp8 (s, param) ? WEFT_FP8 : s->weight_dtype;
}

/* Returns the index of the flat buffer that contains a parameter. Adds a new flat buffer to the
 * list if no buffer fits the parameter. */
static uint32_t
find_flat (struct weft_step *s, uint32_t param)
{
  struct weft_flat wanted = { .dtype = storage (s, param),
                              .grad_dtype = s->main_dtype,
                              .expert = weft_params_is_sharded_expert (s, param),
                              .rule = weft_params_rule (s, param),
                              .weights = WEFT_NO_BUF,
                              .grads = WEFT_NO_BUF,
                              .chunk = weft_param_at (s, param)->chunk };

  for (uint32_t i = 0; i < s->params->flat->len; i++) {
    const struct weft_flat *flat = &g_array_index (s->params->flat, struct weft_flat, i);
    if (flat->dtype == wanted.dtype && flat->grad_dtype == wanted.grad_dtype &&
        flat->expert == wanted.expert && flat->rule == wanted.rule && flat->chunk == wanted.chunk)
      return i;
  }
  g_array_append_val (s->params->flat, wanted);
  return s->params->flat->len - 1;
}

/* Returns the index of a chunk's flat buffer whose buckets have launches of their own while the
 * chunk's other tensors are spread over its layers: fp8 weights, or the tensors that Muon or AdamW
 * with 8-bit moments updates. UINT32_MAX if the chunk has none. */
static uint32_t
apart_of (const struct weft_step *s, uint32_t chunk)
{
  for (int rule = 0; rule < 2; rule++)
    for (uint32_t i = 0; i < s->params->flat->len; i++) {
      const struct weft_flat *flat = &g_array_index (s->params->flat, struct weft_flat, i);
      gboolean apart = rule ? flat->rule != WEFT_ADAM : weft_dtype_bytes (flat->dtype) == 1;
      if (flat->chunk == chunk && !flat->expert && apart)
        return i;
    }
  return UINT32_MAX;
}

/* Returns how the collectives of a model chunk's buckets are combined into launches. Chunks after
 * the first have no bucketing, as Megatron-LM wraps them with disable_bucketing (training.py,
 * get_model). With reduce_scatter_with_fp32_accumulation every bucket has a separate launch. The
 * two copies of a DualPipe stage have different chunk numbers, but their launches must be combined
 * in the same way. */
static enum weft_bucket_launch
launch_of (const struct weft_step *s, uint32_t chunk)
{
  if (s->sharding->unit_of)
    return WEFT_LAUNCH_UNITS;
  if (s->strategy->reduce_scatter_with_fp32_accumulation)
    return WEFT_LAUNCH_EACH;
  if (s->strategy->disable_bucketing || chunk > 0 || s->mesh->mirror)
    return WEFT_LAUNCH_ALL;
  return apart_of (s, chunk) != UINT32_MAX ? WEFT_LAUNCH_APART : WEFT_LAUNCH_EACH;
}

static void
group_buckets (struct weft_step *s, const struct weft_layout_param *param)
{
  g_autofree struct weft_layout_launch *how = g_new (struct weft_layout_launch, s->n_chunks);

  for (uint32_t chunk = 0; chunk < s->n_chunks; chunk++)
    how[chunk] = (struct weft_layout_launch){ launch_of (s, chunk), apart_of (s, chunk) };
  weft_layout_group (&s->params->layout, how, s->n_chunks, param);
}

/* Elements of a tensor's place in a buffer of frozen weights: a multiple of 64, as the distributed
 * optimizer aligns tensors. */
static uint64_t
frozen_room (const struct weft_param *param)
{
  return (param->rows * param->columns + 63) / 64 * 64;
}

/* Gives the layout, which contains only the trained tensors, a place for every tensor. trained[i]:
 * number of the layout's tensor i. Frozen tensors follow each other after all flat buffers. */
static void
place_frozen (struct weft_step *s, const uint32_t *trained)
{
  struct weft_layout *layout = &s->params->layout;
  struct weft_layout_place *all = g_new0 (struct weft_layout_place, weft_params_count (s));
  uint64_t end = layout->numel;

  for (uint32_t i = 0; i < layout->n_param; i++)
    all[trained[i]] = layout->place[i];
  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    const struct weft_param *param = weft_param_at (s, i);
    if (!param->frozen)
      continue;
    all[i] = (struct weft_layout_place){ .start = end,
                                         .end = end + param->rows * param->columns,
                                         .bucket = WEFT_NO_BUCKET };
    end += frozen_room (param);
  }
  g_free (layout->place);
  layout->place = all;
  layout->n_param = weft_params_count (s);
}

static void
lay_out (struct weft_step *s)
{
  uint32_t n = weft_params_count (s), n_trained = 0,
           replicas = weft_mesh_group_size (s->mesh, WEFT_GROUP_DP);
  g_autofree uint32_t *trained = g_new (uint32_t, n + 1);
  struct weft_layout_rule rule = { .threshold = threshold (s, replicas),
                                   .group = weft_mesh_slots (s->mesh),
                                   .sharded = s->shard_optimizer,
                                   .high_busbw = s->strategy->pad_buckets_for_high_nccl_busbw,
                                   .whole_from = 1 };
  g_autofree struct weft_layout_param *list = g_new0 (struct weft_layout_param, n);

  for (uint32_t i = 0; i < n; i++) {
    const struct weft_param *param = weft_param_at (s, i);
    if (param->frozen)
      continue;
    struct weft_layout_param *row = &list[n_trained];
    trained[n_trained++] = i;
    *row = (struct weft_layout_param){ .numel = param->rows * param->columns,
                                       .shared_embedding = param->tied,
                                       .unit = s->sharding->unit_of ? s->sharding->unit_of (s, i)
                                                                    : WEFT_NO_UNIT,
                                       .columns = param->columns,
                                       .chunk = param->chunk,
                                       .buffer = find_flat (s, i),
                                       .expert = weft_params_is_sharded_expert (s, i) };
    row->block = weft_params_rule (s, i) == WEFT_ADAMW_8BIT ? WEFT_8BIT_BLOCK : 0;
    if (weft_params_rule (s, i) == WEFT_MUON) {
      double small = (double) MIN (param->rows, param->columns);
      row->work = small * small * (double) MAX (param->rows, param->columns);
    }
    if (row->expert && s->shard_optimizer)
      row->ranks = weft_mesh_expert_slots (s->mesh);
  }
  s->sharding->lay_out (&s->params->layout, &rule, list, n_trained);
  group_buckets (s, list);
  if (n_trained < n)
    place_frozen (s, trained);
}

uint32_t
weft_params_flat_view (struct weft_step *s, uint32_t flat, uint32_t k, uint64_t n, const char *name)
{
  const struct weft_bucket *bucket = &s->params->layout.bucket[k];
  const struct weft_buf *row = weft_build_buf_at (s->b, flat);
  uint64_t size = weft_dtype_bytes (row->dtype),
           first = bucket->start - s->params->layout.first[bucket->buffer];

  if (row->slice)
    first /= weft_mesh_group_size (s->mesh, row->slice);
  return weft_build_view (s->b, flat, first * size, n * size, name);
}

uint32_t
weft_params_view (struct weft_step *s, uint32_t param, uint32_t base, uint64_t offset)
{
  const struct weft_param *row = weft_param_at (s, param);
  uint32_t size = weft_dtype_bytes (weft_build_buf_at (s->b, base)->dtype);
  uint32_t view = weft_build_view (s->b, base, offset, row->rows * row->columns * size, "view");
  struct weft_buf *buf = weft_build_buf_at (s->b, view);

  buf->name = row->name;
  buf->layer = row->layer;
  return view;
}

static enum weft_group_kind
sharing (const struct weft_step *s, const struct weft_flat *flat)
{
  return (flat->expert ? weft_mesh_expert_sharing : weft_mesh_sharing) (s->mesh);
}

/* Creates a flat buffer of weights or of gradients. The buffer contains whole buckets, or only this
 * rank's slice of every bucket, one bucket after the other. */
static uint32_t
flat_buffer (struct weft_step *s, uint32_t buffer, enum weft_buf_kind kind)
{
  const struct weft_flat *flat = &g_array_index (s->params->flat, struct weft_flat, buffer);
  gboolean weights = kind == WEFT_BUF_WEIGHTS;
  enum weft_dtype dtype = weights ? flat->dtype : flat->grad_dtype;
  enum weft_group_kind group =
      (weights ? flat->cut_weights : flat->cut_grads) ? sharing (s, flat) : WEFT_GROUP_NONE;
  uint64_t n =
      weft_layout_numel (&s->params->layout, buffer) / weft_mesh_group_size (s->mesh, group);
  g_autofree char *name =
      g_strconcat (flat->dtype == WEFT_FP8 ? "fp8 " : "", flat->expert ? "expert " : "",
                   weft_buf_kind_words[kind], NULL);
  uint32_t buf = (s->on_host ? weft_host_permanent : weft_step_permanent) (s, kind, dtype, n, name);

  weft_build_buf_at (s->b, buf)->slice = group;
  return buf;
}

/* Sets whether the weights and gradients of a flat buffer are sharded. Megatron-FSDP does not shard
 * tensors whose sharding group has one rank (param_and_grad_buffer.py tests the size of the group).
 * FSDP2 treats such tensors as shards over one rank (shard_alone). */
static void
choose_cuts (struct weft_step *s, struct weft_flat *flat)
{
  gboolean alone =
      weft_mesh_group_size (s->mesh, sharing (s, flat)) == 1 && !s->sharding->shard_alone;

  flat->cut_weights = s->sharding->shard_weights && !alone;
  flat->cut_grads = s->sharding->shard_grads && !alone;
}

static void
add_flats (struct weft_step *s)
{
  for (uint32_t i = 0; i < s->params->flat->len; i++) {
    struct weft_flat *flat = &g_array_index (s->params->flat, struct weft_flat, i);
    choose_cuts (s, flat);
    gboolean staged = flat->dtype == WEFT_FP8 && s->strategy->reuse_grad_buf_for_mxfp8_param_ag;
    flat->weights = WEFT_NO_BUF;
    if (!staged)
      flat->weights = flat_buffer (s, i, WEFT_BUF_WEIGHTS);
    flat->grads = flat_buffer (s, i, WEFT_BUF_GRADIENTS);
  }
}

/* Creates the buffers of frozen weights, one for each model chunk that has any. */
static void
add_frozen (struct weft_step *s)
{
  g_autofree uint64_t *n = g_new0 (uint64_t, s->n_chunks);

  s->params->frozen = g_new (uint32_t, s->n_chunks);
  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    const struct weft_param *param = weft_param_at (s, i);
    if (param->frozen)
      n[param->chunk] += frozen_room (param);
  }
  for (uint32_t chunk = 0; chunk < s->n_chunks; chunk++)
    s->params->frozen[chunk] = n[chunk] ? weft_step_permanent (s, WEFT_BUF_WEIGHTS, s->weight_dtype,
                                                               n[chunk], "frozen_weights")
                                        : WEFT_NO_BUF;
}

/* Creates the view of each frozen weight. */
static void
view_frozen (struct weft_step *s)
{
  g_autofree uint64_t *end = g_new0 (uint64_t, s->n_chunks);

  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    const struct weft_param *param = weft_param_at (s, i);
    if (!param->frozen)
      continue;
    s->params->weight_view[i] =
        weft_params_view (s, i, s->params->frozen[param->chunk],
                          end[param->chunk] * weft_dtype_bytes (s->weight_dtype));
    end[param->chunk] += frozen_room (param);
  }
}

/* Creates a view of each trained tensor whose flat buffer is whole on this rank. A tensor whose
 * flat buffer is sharded has WEFT_NO_BUF, and so have frozen tensors. */
static uint32_t *
add_views (struct weft_step *s, enum weft_buf_kind kind)
{
  uint32_t *view_of = g_new (uint32_t, weft_params_count (s));

  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    view_of[i] = WEFT_NO_BUF;
    if (weft_param_at (s, i)->frozen)
      continue;
    const struct weft_flat *flat = weft_step_flat (s, s->params->layout.place[i].bucket);
    uint32_t buffer = s->params->layout.bucket[s->params->layout.place[i].bucket].buffer;
    uint64_t start = s->params->layout.place[i].start - s->params->layout.first[buffer];
    gboolean weights = kind == WEFT_BUF_WEIGHTS;

    if (!(weights ? flat->cut_weights : flat->cut_grads) &&
        (weights ? flat->weights : flat->grads) != WEFT_NO_BUF)
      view_of[i] =
          weft_params_view (s, i, weights ? flat->weights : flat->grads,
                            start * weft_dtype_bytes (weights ? flat->dtype : flat->grad_dtype));
  }
  return view_of;
}

void
weft_params_build (struct weft_step *s)
{
  struct weft_params *params = s->params = g_new0 (struct weft_params, 1);

  params->list = g_array_new (FALSE, TRUE, sizeof (struct weft_param));
  params->flat = g_array_new (FALSE, TRUE, sizeof (struct weft_flat));
  params->of_layer = g_new (uint32_t, (size_t) s->n_layers * WEFT_N_LAYER_PARAM);
  list_params (s);
  mark_tied (s);
  lay_out (s);
  add_flats (s);
  add_frozen (s);
  params->weight_view = add_views (s, WEFT_BUF_WEIGHTS);
  params->grad_view = add_views (s, WEFT_BUF_GRADIENTS);
  view_frozen (s);
}

void
weft_params_publish (struct weft_step *s)
{
  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    const struct weft_layout_place *place = &s->params->layout.place[i];
    struct weft_param *param = weft_param_at (s, i);
    param->weight = s->params->weight_view[i];
    param->grad = s->params->grad_view[i];
    param->start = place->start;
    param->piece = place->piece;
    param->stride = place->stride;
    param->bucket = place->bucket;
    weft_build_param (s->b, param);
  }
}

void
weft_params_end (struct weft_step *s)
{
  g_array_unref (s->params->list);
  g_array_unref (s->params->flat);
  g_free (s->params->of_layer);
  g_free (s->params->frozen);
  g_free (s->params->weight_view);
  g_free (s->params->grad_view);
  weft_layout_release (&s->params->layout);
  g_free (s->params);
}

uint32_t
weft_params_count (const struct weft_step *s)
{
  return s->params->list->len;
}

struct weft_param *
weft_param_at (const struct weft_step *s, uint32_t param)
{
  return &g_array_index (s->params->list, struct weft_param, param);
}

uint32_t
weft_params_of_layer (const struct weft_step *s, uint32_t layer, enum weft_layer_param which)
{
  return s->params->of_layer[weft_step_slot (s, layer) * WEFT_N_LAYER_PARAM + which];
}

uint32_t
weft_params_layer (const struct weft_step *s, enum weft_layer_param which)
{
  return weft_params_of_layer (s, s->at.layer, which);
}

gboolean
weft_params_trains (const struct weft_step *s, uint32_t param)
{
  return param != WEFT_NO_PARAM && !weft_param_at (s, param)->frozen;
}

/* Whether a tensor of the current layer, or the adapter of this linear map, is trained. */
static gboolean
trains (const struct weft_step *s, enum weft_layer_param which)
{
  return weft_params_trains (s, weft_params_layer (s, which)) ||
         weft_params_lora (s, which).a != WEFT_N_LAYER_PARAM;
}

gboolean
weft_params_flows_below (const struct weft_step *s, enum weft_layer_param which)
{
  static const enum weft_layer_param order[] = {
    WEFT_NORM1_WEIGHT,          WEFT_QKV_WEIGHT,   WEFT_Q_NORM_WEIGHT, WEFT_PROJ_WEIGHT,
    WEFT_ATTENTION_NORM_WEIGHT, WEFT_NORM2_WEIGHT, WEFT_FC1_WEIGHT,    WEFT_FC2_WEIGHT,
    WEFT_MLP_NORM_WEIGHT
  };
  const union weft_model *m = s->model;
  gboolean compares = m->residual == WEFT_RESIDUAL_SEQUENTIAL &&
                      m->norm_placement != WEFT_NORM_POST && m->kv_lora_rank == 0;

  if (weft_job_trains (s->job, WEFT_FREEZE_EMBEDDING) ||
      (m->embedding_layernorm && weft_job_trains (s->job, WEFT_FREEZE_NORM)))
    return TRUE;
  if (s->at.layer > 0 || !compares)
    return weft_job_trains_layers (s->job);
  for (size_t i = 0; i < G_N_ELEMENTS (order) && order[i] != which; i++)
    if (trains (s, order[i]))
      return TRUE;
  return FALSE;
}

uint32_t
weft_params_of_end (const struct weft_step *s, enum weft_end_param which)
{
  return s->params->of_end[which];
}

uint32_t
weft_params_of_mlp (const struct weft_step *s, uint32_t layer)
{
  uint32_t norm = weft_params_of_layer (s, layer, WEFT_NORM2_WEIGHT);
  uint32_t fc1 = weft_params_of_layer (s, layer, WEFT_FC1_WEIGHT);

  if (norm != WEFT_NO_PARAM)
    return norm;
  return fc1 != WEFT_NO_PARAM ? fc1 : weft_params_of_layer (s, layer, WEFT_ROUTER_WEIGHT);
}

uint32_t
weft_params_scale (const struct weft_step *s, uint32_t param)
{
  return weft_param_at (s, param)->scale;
}
