#include "core/program/muon.h"
#include "core/program/cut.h"

uint32_t
weft_muon_matrices (const struct weft_job *job, const char *name)
{
  return job->train.muon_split_qkv && g_str_equal (name, "qkv.weight") ? 3 : 1;
}

struct weft_muon_matrix
weft_muon_matrix (const struct weft_job *job, const char *name, const struct weft_param *param,
                  uint32_t i)
{
  gboolean split = weft_muon_matrices (job, name) > 1;
  struct weft_muon_matrix m = { .ways = job->train.muon_tp_mode == WEFT_MUON_DUPLICATED
                                            ? param->ways
                                            : 1,
                                .block = split ? WEFT_MUON_QUERIES + i : WEFT_MUON_WHOLE };

  m.rows = weft_muon_rows (param->rows, split ? weft_param_tail (param, &job->model) : 0, m.block) *
           (param->cut == WEFT_CUT_ROWS ? m.ways : 1);
  m.columns = param->columns * (param->cut == WEFT_CUT_COLUMNS ? m.ways : 1);
  return m;
}

double
weft_muon_flops (const struct weft_job *job, const struct weft_muon_matrix *m)
{
  double small = (double) MIN (m->rows, m->columns), large = (double) MAX (m->rows, m->columns);

  return (double) job->train.muon_num_ns_steps * 2 * small * small * (2 * large + small);
}
