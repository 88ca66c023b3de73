/* Loads the CUDA module on demand.  CUDA and NCCL take hundreds of megabytes, and most commands use
 * no GPU.  The table of calls is therefore in a shared library, which is loaded when an executor is
 * first opened, if this build has the library.  The library is never unloaded, because CUDA cannot
 * be unloaded. */
#include "exec_gpu/cuda/exec_cuda.h"
#include "core/base/error.h"
#include "core/base/home.h"
#include "exec_gpu/launches.h"
#include <dlfcn.h>
#include <string.h>

#ifdef WEFT_CUDA_MODULE

/* The entry of the module: returns its table of calls, or NULL and what is missing (a driver, a
 * GPU). */
typedef const struct weft_gpu_calls *(*calls_open) (const char **said);

static calls_open
find (const char *path, GError **error)
{
  void *module = dlopen (path, RTLD_NOW | RTLD_LOCAL), *symbol;
  calls_open open = NULL;

  if (!module || !(symbol = dlsym (module, "weft_gpu_calls_open"))) {
    weft_bad_input (error, "--executor: cuda cannot be used: %s", dlerror ());
    return NULL;
  }
  memcpy (&open, &symbol,
          sizeof open); /* C has no cast from an object pointer to a function pointer */
  return open;
}

/* The table of the module; NULL until the module is loaded. */
static const struct weft_gpu_calls *loaded;

const struct weft_gpu_calls *
weft_cuda_load (GError **error)
{
  const char *prefix = weft_home_prefix (), *said = NULL;

  if (loaded)
    return loaded;
  g_autofree char *path =
      prefix ? g_build_filename (prefix, WEFT_CUDA_INSTALLED, NULL) : g_strdup (WEFT_CUDA_MODULE);
  calls_open open = find (path, error);

  if (open && !(loaded = open (&said)))
    weft_bad_input (error, "--executor: cuda cannot be used: %s", said);
  return loaded;
}

#else

const struct weft_gpu_calls *
weft_cuda_load (GError **error)
{
  weft_bad_input (error,
                  "--executor: cuda is not in this build, wanted cpu or auto: CMake found no "
                  "CUDA toolkit with NCCL where it was made");
  return NULL;
}

#endif

weft_exec *
weft_exec_cuda_open (const struct weft_gpu_calls *calls, const weft_plan *plan,
                     const struct weft_exec_options *options, GError **error)
{
  return weft_exec_gpu_open (&weft_exec_cuda, calls, plan, options, error);
}

static weft_exec *
cuda_open (const weft_plan *plan, const struct weft_exec_options *options, GError **error)
{
  const struct weft_gpu_calls *calls = weft_cuda_load (error);

  return calls ? weft_exec_cuda_open (calls, plan, options, error) : NULL;
}

static gboolean
load (GError **error)
{
  return weft_cuda_load (error) != NULL;
}

static char *
machine_name (void)
{
  const struct weft_gpu_calls *calls = weft_cuda_load (NULL);

  return calls ? weft_exec_gpu_name (calls) : g_strdup ("no GPU");
}

static gboolean
time_launches (double *seconds, GError **error)
{
  const struct weft_gpu_calls *calls = weft_cuda_load (error);

  return calls && weft_gpu_time_launches (calls, seconds, error);
}

static const char *const sources[] = { "events", "cupti", NULL };

static const struct weft_field fields[] = { WEFT_GPU_OPTION_LIST (
    WEFT_OPTION_FIELD, sources, "events around ops, or CUPTI records of every kernel") };
static const struct weft_table table = { "option of executor cuda", fields, G_N_ELEMENTS (fields) };

const struct weft_exec_ops weft_exec_cuda = {
  .name = "cuda",
  .doc = "real numbers: ranks are GPUs, or share one",
  .options = &table,
  .load = load,
  .open = cuda_open,
  .machine_name = machine_name,
  .time_launches = time_launches,
  WEFT_EXEC_GPU_OPS,
};
