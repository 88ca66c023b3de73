/* Plans of one device by shape, and the functions of the library that makes the plans. */
#include "kernels/cuda/cudnn_attention.h"
#include "core/base/words.h"
#include <dlfcn.h>
#include <string.h>

/* ----------------------------------------------------------------------------- the library */

#define FILE_NAME "libcudnn.so.9"

/* Names of the library file that are tried: the name for the loader's path, then the folders of an
 * installed toolkit and of a manual installation. */
static const char *const places[] = { FILE_NAME, "/usr/local/cuda/lib64/" FILE_NAME,
                                      "/usr/local/cuda/lib/" FILE_NAME };

static gboolean
find_calls (void *library, struct weft_cudnn_calls *calls)
{
  const struct {
    const char *name;
    void *to;
  } wanted[] = {
#define WEFT_CUDNN_WANTED(type, name, parameters) { "cudnn" #name, &calls->name },
    WEFT_CUDNN_CALL_LIST (WEFT_CUDNN_WANTED)
#undef WEFT_CUDNN_WANTED
  };

  for (unsigned i = 0; i < G_N_ELEMENTS (wanted); i++) {
    void *symbol = dlsym (library, wanted[i].name);
    if (!symbol)
      return FALSE;
    memcpy (wanted[i].to, &symbol, sizeof symbol);
  }
  return TRUE;
}

/* Loads the library file `place`. NULL: it could not be loaded, and the reason is appended to
 * `tried`. The library is never closed, because it has threads and memory of its own. */
static struct weft_cudnn_calls *
open_at (const char *place, GString *tried)
{
  g_autofree struct weft_cudnn_calls *calls = g_new0 (struct weft_cudnn_calls, 1);
  void *library = dlopen (place, RTLD_NOW | RTLD_LOCAL);

  if (!library)
    g_string_append_printf (tried, "; %s", dlerror ());
  else if (!find_calls (library, calls))
    g_string_append_printf (tried, "; %s lacks calls of the graph API", place);
  else
    return g_steal_pointer (&calls);
  return NULL;
}

struct weft_cudnn_calls *
weft_cudnn_open (const char *place, const char **why)
{
  g_autoptr (GString) tried = g_string_new ("cuDNN not found: looked for " FILE_NAME);
  struct weft_cudnn_calls *calls = place ? open_at (place, tried) : NULL;

  for (unsigned i = 0; i < G_N_ELEMENTS (places) && !place && !calls; i++)
    calls = open_at (places[i], tried);
  if (!calls)
    *why = g_intern_string (tried->str);
  return calls;
}

/* ---------------------------------------------------------------------------------- shapes */

enum { BATCH, SEQUENCE, HEADS, GROUPS, WIDTH, WINDOW, VALUE };

struct weft_cudnn_shape
weft_cudnn_shape_of (const uint64_t *dim, uint8_t dtype, gboolean backward, gboolean same)
{
  return (struct weft_cudnn_shape){ .batch = dim[BATCH],
                                    .tokens = dim[SEQUENCE],
                                    .heads = dim[HEADS],
                                    .groups = dim[GROUPS],
                                    .width = dim[WIDTH],
                                    .value = dim[VALUE] ? dim[VALUE] : dim[WIDTH],
                                    .window = dim[WINDOW] < dim[SEQUENCE] ? dim[WINDOW] : 0,
                                    .dtype = dtype,
                                    .backward = (uint8_t) backward,
                                    .same = (uint8_t) (same || !backward) };
}

/* Releases up to 9.15.0 compute a wrong backward for sequence lengths that are not a multiple of
 * the block, unless a padding mask is set (NVIDIA/cudnn-frontend,
 * scaled_dot_product_flash_attention.h). */
enum { WHOLE_BLOCKS_UNTIL = 91500, BLOCK = 128 };

static const char *
wrong_with (const struct weft_cudnn_shape *s, size_t version)
{
  if (s->dtype != WEFT_BF16 && s->dtype != WEFT_FP16)
    return "cuDNN attention supports only bf16 and fp16";
  if (s->width % 8 != 0 || s->value % 8 != 0)
    return "cuDNN attention supports only head widths that are multiples of 8";
  if (s->backward && version <= WHOLE_BLOCKS_UNTIL && s->tokens % BLOCK != 0)
    return "before 9.15.1 the backward pass of cuDNN attention supports only sequence lengths that "
           "are multiples of 128";
  return NULL;
}

/* ----------------------------------------------------------------------------------- plans */

struct plan {
  struct weft_cudnn_shape shape;
  weft_cudnn_graph graph;
  const char *refused; /* why no plan could be made; NULL: there is a plan */
};

struct weft_cudnn_attention {
  const struct weft_cudnn_calls *calls;
  void *handle;
  char *device;
  size_t version;
  GHashTable *plans; /* shape -> plan */
};

guint
weft_cudnn_hash_shape (gconstpointer data)
{
  const uint8_t *byte = data;
  guint hash = 5381;

  for (size_t i = 0; i < sizeof (struct weft_cudnn_shape); i++)
    hash = hash * 33 + byte[i];
  return hash;
}

gboolean
weft_cudnn_same_shape (gconstpointer a, gconstpointer b)
{
  return memcmp (a, b, sizeof (struct weft_cudnn_shape)) == 0;
}

static void
free_plan (gpointer data)
{
  struct plan *plan = data;

  weft_cudnn_graph_clear (&plan->graph);
  g_free (plan);
}

struct weft_cudnn_attention *
weft_cudnn_attention_new (const struct weft_cudnn_calls *calls, const char *device,
                          const char **why)
{
  size_t version = calls->GetVersion ();
  void *handle = NULL;
  g_autofree char *text = NULL;

  if (version < WEFT_CUDNN_OLDEST)
    text = g_strdup_printf ("cuDNN: found version %zu, wanted %d or newer", version,
                            WEFT_CUDNN_OLDEST);
  int status = text || device ? 0 : calls->Create (&handle);
  if (status)
    text = g_strdup_printf ("cuDNN cannot be opened: %s", calls->GetErrorString (status));
  if (text) {
    *why = g_intern_string (text);
    return NULL;
  }
  struct weft_cudnn_attention *a = g_new0 (struct weft_cudnn_attention, 1);
  *a = (struct weft_cudnn_attention){
    .calls = calls, .handle = handle, .device = g_strdup (device), .version = version
  };
  a->plans = g_hash_table_new_full (weft_cudnn_hash_shape, weft_cudnn_same_shape, NULL, free_plan);
  return a;
}

void
weft_cudnn_attention_free (struct weft_cudnn_attention *a)
{
  if (!a)
    return;
  g_hash_table_unref (a->plans);
  if (a->handle)
    (void) a->calls->Destroy (a->handle);
  g_free (a->device);
  g_free (a);
}

static const char *
build (struct weft_cudnn_attention *a, struct plan *plan)
{
  weft_cudnn_graph *g = &plan->graph;
  const char *wrong = wrong_with (&plan->shape, a->version);

  *g = (weft_cudnn_graph){ .calls = a->calls, .handle = a->handle };
  if (wrong)
    return wrong;
  if (a->device)
    weft_cudnn_describe (g, a->device);
  if (!weft_cudnn_attention_build (g, &plan->shape))
    return g_intern_string (g->error);
  if (g->own + g->workspace <= WEFT_CUDNN_MOST_SCRATCH)
    return NULL;
  g_autofree char *text = g_strdup_printf ("it needs %.1f GiB of scratch; the limit is %.0f GiB",
                                           (double) (g->own + g->workspace) / (1 << 30),
                                           (double) WEFT_CUDNN_MOST_SCRATCH / (1 << 30));
  return g_intern_string (text);
}

static struct plan *
plan_of (struct weft_cudnn_attention *a, const struct weft_cudnn_shape *shape)
{
  struct plan *plan = g_hash_table_lookup (a->plans, shape);

  if (plan)
    return plan;
  plan = g_new0 (struct plan, 1);
  plan->shape = *shape;
  plan->refused = build (a, plan);
  if (plan->refused)
    weft_cudnn_graph_clear (&plan->graph);
  g_hash_table_insert (a->plans, &plan->shape, plan);
  return plan;
}

const char *
weft_cudnn_attention_plan (struct weft_cudnn_attention *a, const struct weft_cudnn_shape *shape,
                           uint64_t *scratch)
{
  const struct plan *plan = plan_of (a, shape);

  *scratch = plan->graph.own + plan->graph.workspace;
  return plan->refused;
}

const char *
weft_cudnn_attention_run (struct weft_cudnn_attention *a, const struct weft_cudnn_shape *shape,
                          const struct weft_cuda_launch *l)
{
  struct plan *plan = plan_of (a, shape);
  void *pointer[WEFT_CUDA_MOST_OPERANDS];

  if (plan->refused)
    return plan->refused;
  for (unsigned i = 0; i < WEFT_CUDA_MOST_OPERANDS; i++)
    pointer[i] = l->operand[i].data;
  return weft_cudnn_run (&plan->graph, pointer, l->scratch, l->stream);
}
