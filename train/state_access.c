/* Functions of a state that neither read nor write elements of tensors. */
#include "core/base/error.h"
#include "train/state_parts.h"

struct weft_rendezvous *
weft_state_peers (const weft_state *state)
{
  return state->x->peers;
}

void
weft_state_watch (weft_state *state, weft_state_asked asked, void *user)
{
  state->asked = asked;
  state->user = user;
}

gboolean
weft_state_go_on (const weft_state *state, GError **error)
{
  return !state->asked || !state->asked (state->user) ||
         weft_run_error (error, "the weights are incomplete: asked to stop");
}

gboolean
weft_state_has (const weft_state *state, uint32_t row)
{
  return weft_exec_has (state->x, row);
}

uint32_t
weft_state_count (const weft_state *state)
{
  return state->tensors->len;
}

const struct weft_state_tensor *
weft_state_at (const weft_state *state, uint32_t tensor)
{
  return &tensor_at (state, tensor)->info;
}

gboolean
weft_state_is_clear (const weft_state *state)
{
  return state->x->fresh;
}

enum weft_dtype
weft_state_dtype (const weft_state *state)
{
  return state->dtype;
}

const struct weft_state_run *
weft_state_runs (const weft_state *state, uint32_t tensor, uint32_t *n_runs)
{
  const struct tensor *t = tensor_at (state, tensor);

  *n_runs = t->runs->len;
  return (const struct weft_state_run *) (void *) t->runs->data;
}
