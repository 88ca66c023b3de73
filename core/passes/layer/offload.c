/* Activation offload: activations of the first n of L layers are stored in host memory between
 * forward and backward. There are two methods, which differ in when copies start and when device
 * memory is freed (Transformer Engine pytorch/cpu_offload.py):
 *
 *   default  (the newer method) layer i is copied to the host when the forward of layer i + 1
 *            begins. Its memory is freed when the forward of layer L - n + i begins, which waits
 *            for the copy. Layer i is copied back when the backward of layer L - 1 - n + i begins.
 *            A kernel waits only for the tensors that it reads. The device memory of these tensors
 *            is freed when the next layer's backward begins. The activations of L - n layers are
 *            on the device at one time
 *   windows  (cpu_offloading_double_buffering, the older method) the first layer is copied after
 *            its forward, and the others one by one at the ends of windows of about L / n layers.
 *            At the end of a window the compute stream waits for the copy in flight and then frees
 *            its memory. Backward copies layers back at the ends of the windows in reverse order,
 *            into two permanent sets of buffers used in turn. If windows are long, Transformer
 *            Engine copies layer i into the buffers of layer i + 2 before the backward of layer i +
 *            2. Here the copy starts after that backward */
#include "core/passes/layer/chunk.h"

/* Activations of one layer and microbatch in host memory. */
struct offloaded {
  struct weft_saved host;
  uint32_t sent; /* op that copied the last of these activations to the host */
};

struct weft_offload_part {
  uint32_t n;                  /* n: number of layers whose activations are offloaded */
  struct offloaded *offloaded; /* [n_micro][n] */
  /* with cpu_offloading_double_buffering: two permanent sets of buffers. Layers that are copied
   * back from the host use the sets in turn */
  struct weft_saved reload[2];
};

enum { N_SAVED = sizeof (struct weft_saved) / sizeof (uint32_t) };

static uint32_t *
list (struct weft_saved *saved)
{
  return (uint32_t *) (void *) saved;
}

/* Returns the number of layers that may be offloaded. Offload requires a single pipeline stage.
 * Layers of multi-token prediction are not offloaded. */
static uint32_t
layers (const struct weft_step *s)
{
  return s->chunk[0].n_layers;
}

static uint32_t
kept_layers (const struct weft_step *s)
{
  return layers (s) - s->layer->offload->n;
}

static struct weft_saved *
saved_at (struct weft_step *s, uint32_t micro, uint32_t l)
{
  return &s->layer->saved[(size_t) micro * s->n_layers + l];
}

static struct offloaded *
offloaded_at (struct weft_step *s, uint32_t micro, uint32_t l)
{
  return &s->layer->offload->offloaded[(size_t) micro * s->layer->offload->n + l];
}

/* ------------------------------------------------------------------------- copies */

static struct weft_op
go_to (struct weft_step *s, uint32_t l)
{
  struct weft_op at = s->at;

  s->at.layer = weft_step_chunk (s)->first_layer + l;
  return at;
}

/* Creates a buffer with the dtype and size of `like`, in host memory or on the device. */
static uint32_t
room_for (struct weft_step *s, uint32_t like, gboolean on_host)
{
  const struct weft_buf *row = weft_build_buf_at (s->b, like);
  enum weft_dtype dtype = row->dtype;
  uint64_t n = row->bytes / weft_dtype_bytes (dtype);

  return (on_host ? weft_host_buffer : weft_step_buffer) (s, WEFT_BUF_ACTIVATIONS, dtype, n,
                                                          on_host ? "offloaded" : "reloaded");
}

static struct weft_host_copy
copy_of (struct weft_step *s, const char *name, uint32_t device, uint32_t host)
{
  const struct weft_buf *row = weft_build_buf_at (s->b, host);

  return (struct weft_host_copy){ name, device, host, 0,
                                  row->bytes / weft_dtype_bytes (row->dtype) };
}

static void
wait_for_kernels (struct weft_step *s)
{
  weft_build_dep (s->b, weft_build_last (s->b, WEFT_LANE_GPU));
}

static void
send (struct weft_step *s, uint32_t micro, uint32_t l)
{
  uint32_t *device = list (saved_at (s, micro, l)),
           *host = list (&offloaded_at (s, micro, l)->host);
  struct weft_op at = go_to (s, l);

  for (int i = 0; i < N_SAVED; i++) {
    host[i] = WEFT_NO_BUF;
    if (device[i] == WEFT_NO_BUF)
      continue;
    host[i] = room_for (s, device[i], TRUE);
    struct weft_host_copy copy = copy_of (s, "offload", device[i], host[i]);
    offloaded_at (s, micro, l)->sent = weft_to_host (s, &copy);
    wait_for_kernels (s);
  }
  s->at = at;
}

/* Frees the device memory of a layer's activations. after: the copy that must end before the memory
 * is freed, or WEFT_NO_OP. */
static void
release (struct weft_step *s, uint32_t micro, uint32_t l, uint32_t after)
{
  const uint32_t *device = list (saved_at (s, micro, l));
  struct weft_op at = go_to (s, l);

  for (int i = 0; i < N_SAVED; i++) {
    if (device[i] == WEFT_NO_BUF)
      continue;
    weft_emit (s, WEFT_OP_RELEASE, "release_offloaded", WEFT_SHAPE (s->dtype, 0),
               WEFT_USES (WEFT_R (device[i])));
    weft_build_dep (s->b, after);
  }
  s->at = at;
}

static uint32_t
standing_buffer (struct weft_step *s, uint32_t set, int i, uint32_t like)
{
  uint32_t *at = &list (&s->layer->offload->reload[set])[i];

  if (*at == WEFT_NO_BUF) {
    *at = room_for (s, like, FALSE);
    struct weft_buf *row = weft_build_buf_at (s->b, *at);
    row->permanent = 1;
    row->layer = WEFT_NO_LAYER;
    row->micro = WEFT_NO_MICRO;
  }
  return *at;
}

/* Copies the activations of a layer from host memory to the device. Tensors are copied in reverse
 * order of forward, because backward reads them in reverse order. */
static void
fetch (struct weft_step *s, uint32_t micro, uint32_t l)
{
  uint32_t *device = list (saved_at (s, micro, l)),
           *host = list (&offloaded_at (s, micro, l)->host);
  struct weft_op at = go_to (s, l);

  for (int i = N_SAVED; i-- > 0;) {
    if (host[i] == WEFT_NO_BUF)
      continue;
    device[i] = s->strategy->cpu_offloading_double_buffering
                    ? standing_buffer (s, l % 2, i, device[i])
                    : room_for (s, device[i], FALSE);
    struct weft_host_copy copy = copy_of (s, "reload", device[i], host[i]);
    weft_from_host (s, &copy);
    wait_for_kernels (s);
  }
  s->at = at;
}

/* ------------------------------------------------------------------- today's plan */

static void
before_forward (struct weft_step *s, uint32_t micro, uint32_t l)
{
  if (l > 0 && l - 1 < s->layer->offload->n)
    send (s, micro, l - 1);
  if (l >= kept_layers (s)) {
    uint32_t gone = l - kept_layers (s);
    release (s, micro, gone, offloaded_at (s, micro, gone)->sent);
  }
}

static void
before_backward (struct weft_step *s, uint32_t micro, uint32_t l)
{
  if (l + 1 < s->layer->offload->n)
    release (s, micro, l + 1, WEFT_NO_OP);
  if (l + 1 >= kept_layers (s) && l + 1 - kept_layers (s) < s->layer->offload->n)
    fetch (s, micro, l + 1 - kept_layers (s));
}

static void
after_backward (struct weft_step *s, uint32_t micro)
{
  release (s, micro, 0, WEFT_NO_OP);
}

/* ----------------- cpu_offloading_double_buffering: copies at the ends of windows */

/* Returns the last layer of window i (a run of consecutive layers). After the forward of that
 * layer, kernels wait for the copy of layer i to the host. */
static uint32_t
window_end (const struct weft_step *s, uint32_t i)
{
  uint32_t rest = layers (s) % s->layer->offload->n;

  return layers (s) / s->layer->offload->n * (i + 1) - 1 + MIN (i + 1, rest);
}

static void
window_after_forward (struct weft_step *s, uint32_t micro, uint32_t l)
{
  if (l == 0)
    send (s, micro, 0);
  for (uint32_t i = 0; i < s->layer->offload->n; i++) {
    if (window_end (s, i) != l)
      continue;
    release (s, micro, i, offloaded_at (s, micro, i)->sent);
    if (i + 1 < s->layer->offload->n)
      send (s, micro, i + 1);
  }
}

/* Returns a layer number l: layer i is copied back to the device before the backward of layer l.
 * Layers i and i + 2 share one set of buffers. */
static uint32_t
window_begin (const struct weft_step *s, uint32_t i)
{
  return i + 2 < s->layer->offload->n ? MIN (window_end (s, i), i + 1) : window_end (s, i);
}

static void
window_before_backward (struct weft_step *s, uint32_t micro, uint32_t l)
{
  uint32_t newest = weft_build_last (s->b, WEFT_LANE_H2D);
  gboolean joins = l == 0;

  for (uint32_t i = 0; i < s->layer->offload->n; i++)
    joins |= window_begin (s, i) == l;
  if (joins && newest != WEFT_NO_OP)
    weft_next_kernel_waits_for (s, newest);
  for (uint32_t i = 0; i < s->layer->offload->n; i++)
    if (window_begin (s, i) == l)
      fetch (s, micro, i);
}

static void
nothing_at (struct weft_step *s, uint32_t micro, uint32_t l)
{
  (void) s, (void) micro, (void) l;
}

static void
nothing (struct weft_step *s, uint32_t micro)
{
  (void) s, (void) micro;
}

/* ------------------------------------------------------------------------- hooks */

static const struct plan {
  void (*before_forward) (struct weft_step *s, uint32_t micro, uint32_t l);
  void (*after_forward) (struct weft_step *s, uint32_t micro, uint32_t l);
  void (*before_backward) (struct weft_step *s, uint32_t micro, uint32_t l);
  void (*after_backward) (struct weft_step *s, uint32_t micro);
} plans[] = {
  { before_forward, nothing_at, before_backward, after_backward },
  { nothing_at, window_after_forward, window_before_backward, nothing },
};

static const struct plan *
plan_of (const struct weft_step *s)
{
  return &plans[s->strategy->cpu_offloading_double_buffering];
}

void
weft_offload_start (struct weft_step *s)
{
  const union weft_strategy *k = s->strategy;

  if (!k->cpu_offloading || !k->cpu_offloading_activations)
    return;
  if (k->cpu_offloading_num_layers == 0)
    return;
  struct weft_offload_part *o = s->layer->offload = g_new0 (struct weft_offload_part, 1);
  o->n = k->cpu_offloading_num_layers;
  o->offloaded = g_new0 (struct offloaded, (size_t) s->n_micro * o->n);
  for (int i = 0; i < 2 * N_SAVED; i++)
    list (&o->reload[i / N_SAVED])[i % N_SAVED] = WEFT_NO_BUF;
}

void
weft_offload_end (struct weft_step *s)
{
  if (!s->layer->offload)
    return;
  g_free (s->layer->offload->offloaded);
  g_free (s->layer->offload);
}

void
weft_offload_before_forward (struct weft_step *s, uint32_t micro, uint32_t l)
{
  if (s->layer->offload)
    plan_of (s)->before_forward (s, micro, l);
}

void
weft_offload_after_forward (struct weft_step *s, uint32_t micro, uint32_t l)
{
  if (s->layer->offload)
    plan_of (s)->after_forward (s, micro, l);
}

void
weft_offload_before_backward (struct weft_step *s, uint32_t micro, uint32_t l)
{
  if (s->layer->offload)
    plan_of (s)->before_backward (s, micro, l);
}

void
weft_offload_after_backward (struct weft_step *s, uint32_t micro)
{
  if (s->layer->offload)
    plan_of (s)->after_backward (s, micro);
}
