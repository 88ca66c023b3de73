/* The program that runs once, before the first step.
 *
 *   weights   With perform_initialization, one kernel initializes each tensor, or each flat buffer
 *             of which ranks store only slices. With use_cpu_initialization, each whole tensor is
 *             initialized in fp32 on the host, converted and copied to the device. Tensors follow
 *             one after the other, so that a rank needs host memory for only one tensor
 *             (Megatron-Core tensor_parallel/layers.py, _initialize_affine_weight_cpu).
 *   replicas  As broadcast_params() does (distributed_data_parallel.py), member 0 of the ranks that
 *             hold a parameter broadcasts the parameter, in registration order. Each parameter is a
 *             separate broadcast, so latency determines the time, not the number of bytes.
 *
 * The program has the parameters and flat buffers of the program of a training step. */
#include "core/passes/replicas/replicas.h"
#include "core/passes/roof.h"

static void
broadcast (struct weft_step *s, uint32_t param)
{
  const struct weft_param *row = weft_param_at (s, param);
  const uint32_t filled[] = { weft_build_last (s->b, WEFT_LANE_GPU),
                              weft_build_last (s->b, WEFT_LANE_H2D) };
  uint32_t view = s->params->weight_view[param];
  enum weft_group_kind group = weft_bucket_replicas (s, s->params->layout.place[param].bucket);

  if (weft_mesh_group_size (s->mesh, group) == 1)
    return;
  s->at.layer = row->layer;
  weft_emit_on (s, WEFT_LANE_DP,
                (struct weft_op){ .kind = WEFT_OP_BROADCAST, .group = group, .name = row->name },
                WEFT_SHAPE (weft_build_buf_at (s->b, view)->dtype, row->rows * row->columns),
                WEFT_USES (WEFT_RW (view)));
  for (size_t i = 0; i < G_N_ELEMENTS (filled); i++)
    weft_build_dep (s->b, filled[i]);
}

static void
fill_on_host (struct weft_step *s, uint32_t buf, const char *name, uint64_t n)
{
  enum weft_dtype dtype = weft_build_buf_at (s->b, buf)->dtype;
  uint32_t whole = weft_host_buffer (s, WEFT_BUF_WEIGHTS, WEFT_FP32, n, name), copied = whole;
  struct weft_shape cast = WEFT_SHAPE (WEFT_FP32, n);
  uint32_t before = weft_build_last (s->b, WEFT_LANE_H2D);

  weft_emit_on_host (s, WEFT_OP_FILL, name, WEFT_SHAPE (WEFT_FP32, n), WEFT_USES (WEFT_W (whole)));
  weft_build_dep (s->b, before);
  if (dtype != WEFT_FP32) {
    copied = weft_host_buffer (s, WEFT_BUF_WEIGHTS, dtype, n, name);
    cast.out_dtype = dtype;
    weft_emit_on_host (s, WEFT_OP_CAST, name, cast, WEFT_USES (WEFT_R (whole), WEFT_W (copied)));
  }
  weft_from_host (s, &(struct weft_host_copy){ name, buf, copied, 0, n });
}

/* Initializes a buffer of weights. With FSDP2's offload_policy the buffer is in host memory, and a
 * kernel on the host fills it. */
static void
fill (struct weft_step *s, uint32_t buf, const char *name)
{
  uint64_t n = weft_step_elements (s, buf);
  struct weft_shape shape = WEFT_SHAPE (weft_build_buf_at (s->b, buf)->dtype, n);

  if (s->on_host)
    weft_emit_on_host (s, WEFT_OP_FILL, name, shape, WEFT_USES (WEFT_W (buf)));
  else if (s->strategy->use_cpu_initialization)
    fill_on_host (s, buf, name, n);
  else
    weft_emit (s, WEFT_OP_FILL, name, shape, WEFT_USES (WEFT_W (buf)));
}

static void
fill_slices (struct weft_step *s)
{
  for (uint32_t i = 0; i < s->params->flat->len; i++) {
    uint32_t weights = g_array_index (s->params->flat, struct weft_flat, i).weights;
    if (weights != WEFT_NO_BUF)
      fill (s, weights, "weights");
  }
}

static void
fill_tensors (struct weft_step *s)
{
  for (uint32_t i = 0; i < weft_params_count (s); i++) {
    const struct weft_param *row = weft_param_at (s, i);
    s->at.layer = row->layer;
    if (s->params->weight_view[i] != WEFT_NO_BUF)
      fill (s, s->params->weight_view[i], weft_build_name_at (s->b, row->name));
  }
}

weft_program *
weft_init_build (const struct weft_job *job, const struct weft_mesh *mesh, uint32_t role)
{
  g_autoptr (weft_builder) b = weft_builder_new (role, mesh->pp);
  struct weft_step s = { .job = job, .mesh = mesh, .role = role, .b = b };

  weft_step_begin (&s);
  weft_replicas_build (&s);
  weft_replicas_start (&s);
  s.at.phase = WEFT_PHASE_OPTIMIZER;
  if (s.strategy->perform_initialization)
    (s.sharding->shard_weights ? fill_slices : fill_tensors) (&s);
  for (uint32_t i = 0; i < weft_params_count (&s) && weft_init_broadcasts (job); i++)
    broadcast (&s, i);
  weft_step_end (&s);
  return weft_builder_freeze (b);
}

gboolean
weft_init_keeps_slices (const struct weft_job *job)
{
  const struct weft_mesh mesh = weft_step_mesh (job);

  return weft_replicas_sharding (job, &mesh)->shard_weights;
}

gboolean
weft_init_broadcasts (const struct weft_job *job)
{
  const struct weft_mesh mesh = weft_step_mesh (job);

  return weft_mesh_group_size (&mesh, WEFT_GROUP_DP) > 1 && !weft_init_keeps_slices (job);
}

gboolean
weft_init_does_something (const struct weft_job *job)
{
  return job->strategy.perform_initialization || weft_init_broadcasts (job);
}
