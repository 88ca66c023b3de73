/* What happens once, before the first step.
 *
 * Megatron-Core's broadcast_params() (distributed_data_parallel.py): every parameter, in registration
 * order, from member 0 of the ranks that hold the same one.  There is one collective for each, so it
 * costs latencies more than bytes.  The program has the parameters and flat buffers of a step, at the
 * places they have there. */
#include "core/step.h"

static void
broadcast (struct weft_step *s, uint32_t param)
{
  const struct weft_param *row = &g_array_index (s->params, struct weft_param, param);
  uint32_t view = s->weight_view[param];

  s->at.layer = row->layer;
  weft_emit_on (s, WEFT_LANE_DP,
                (struct weft_op){ .kind = WEFT_OP_BROADCAST,
                                  .group = weft_bucket_replicas (s, s->layout.place[param].bucket),
                                  .name = row->name },
                WEFT_SHAPE (weft_build_buf_at (s->b, view)->dtype, row->rows * row->columns),
                WEFT_USES (WEFT_RW (view)));
}

weft_program *
weft_init_build (const struct weft_job *job, const struct weft_mesh *mesh, uint32_t role)
{
  g_autoptr (weft_builder) b = weft_builder_new (role, mesh->pp);
  struct weft_step s = { .job = job, .mesh = mesh, .role = role, .b = b };

  weft_step_begin (&s);
  weft_params_build (&s);
  s.wrapper->start (&s);
  s.at.phase = WEFT_PHASE_OPTIMIZER;
  for (uint32_t i = 0; i < s.params->len; i++)
    broadcast (&s, i);
  weft_step_end (&s);
  return weft_builder_freeze (b);
}

gboolean
weft_init_keeps_slices (const struct weft_job *job)
{
  const struct weft_mesh mesh = weft_step_mesh (job);
  struct weft_step s = { .job = job, .mesh = &mesh, .strategy = &job->strategy };

  weft_wrapper_choose (&s);
  return s.wrapper->shard_weights;
}

gboolean
weft_init_broadcasts (const struct weft_job *job)
{
  const struct weft_mesh mesh = weft_step_mesh (job);

  return weft_mesh_group_size (&mesh, WEFT_GROUP_DP) > 1 && !weft_init_keeps_slices (job);
}
