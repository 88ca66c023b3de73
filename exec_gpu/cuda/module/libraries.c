#define _GNU_SOURCE /* dladdr, dl_iterate_phdr */
#include "exec_gpu/cuda/module/libraries.h"
#include "kernels/cuda/cudnn.h"
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <link.h>
#include <nccl.h>
#include <string.h>

#pragma weak ncclAlltoAll
#pragma weak ncclCommWindowRegister

/* Path of the library that contains a function; NULL: unknown. */
static const char *
path_of (uintptr_t function)
{
  Dl_info info;

  return dladdr ((void *) function, &info) ? info.dli_fname : NULL;
}

#define PATH_OF(function) path_of ((uintptr_t) &(function))

static int
take_driver (struct dl_phdr_info *info, size_t size, void *path)
{
  (void) size;
  if (!strstr (info->dlpi_name, "/libcuda.so"))
    return 0;
  *(const char **) path = info->dlpi_name;
  return 1;
}

/* Versions of the runtime and of the driver are 1000 major + 10 minor. */
static void
take_cuda (weft_gpu_take_library take, void *user)
{
  int runtime = 0, driver = 0;
  const char *path = NULL;

  (void) cudaRuntimeGetVersion (&runtime);
  (void) cudaDriverGetVersion (&driver);
  (void) dl_iterate_phdr (take_driver, &path);
  g_autofree char *of_runtime = g_strdup_printf ("%d.%d", runtime / 1000, runtime % 1000 / 10);
  g_autofree char *of_driver = g_strdup_printf ("%d.%d", driver / 1000, driver % 1000 / 10);
  take (user, &(struct weft_gpu_library){ "CUDA runtime", of_runtime, NULL, NULL });
  take (user, &(struct weft_gpu_library){ "driver for CUDA", of_driver, path, NULL });
}

static void
take_nccl (weft_gpu_take_library take, void *user)
{
  const char *missing = !ncclCommWindowRegister ? "ncclAlltoAll, ncclCommWindowRegister"
                        : !ncclAlltoAll         ? "ncclAlltoAll"
                                                : NULL;
  int found = 0;

  (void) ncclGetVersion (&found); /* 10000 major + 100 minor + patch */
  g_autofree char *version =
      g_strdup_printf ("%d.%d.%d", found / 10000, found % 10000 / 100, found % 100);
  take (user, &(struct weft_gpu_library){ "NCCL", version, PATH_OF (ncclGetVersion), missing });
}

/* The handle of the library is kept: plans of cuDNN may use it. */
static void
take_cudnn (weft_gpu_take_library take, void *user)
{
  struct weft_gpu_library found = { .name = "cuDNN" };
  g_autofree struct weft_cudnn_calls *calls = weft_cudnn_open (NULL, &found.missing);
  g_autofree char *version = calls ? g_strdup_printf ("%zu", calls->GetVersion ()) : NULL;

  found.version = version;
  if (calls)
    found.path = path_of ((uintptr_t) calls->GetVersion);
  take (user, &found);
}

#ifdef WEFT_CUPTI_MAJOR
static void
take_cupti (weft_gpu_take_library take, void *user)
{
  static const char name[] = "libcupti.so." G_STRINGIFY (WEFT_CUPTI_MAJOR);
  struct weft_gpu_library found = { .name = "CUPTI" };
  void *library = dlopen (name, RTLD_NOW | RTLD_LOCAL);
  void *symbol = library ? dlsym (library, "cuptiGetVersion") : NULL;
  int (*get) (uint32_t *version) = NULL;
  uint32_t version = 0;

  memcpy (&get, &symbol, sizeof get);
  if (!get || get (&version))
    found.missing = "libcupti.so." G_STRINGIFY (WEFT_CUPTI_MAJOR) " cannot be loaded";
  else
    found.path = path_of ((uintptr_t) get);
  g_autofree char *text = g_strdup_printf ("%u", version);
  found.version = version ? text : NULL;
  take (user, &found);
}
#endif

void
weft_cuda_libraries (void *self, weft_gpu_take_library take, void *user)
{
  g_autofree char *version = g_strdup_printf ("%zu", cublasLtGetVersion ());

  (void) self;
  take_cuda (take, user);
  take (user,
        &(struct weft_gpu_library){ "cuBLASLt", version, PATH_OF (cublasLtGetVersion), NULL });
  take_nccl (take, user);
  take_cudnn (take, user);
#ifdef WEFT_CUPTI_MAJOR
  take_cupti (take, user);
#endif
}
