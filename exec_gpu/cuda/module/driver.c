#include "exec_gpu/cuda/module/driver.h"
#include "kernels/cuda/producer.h"
#include <cuda_runtime_api.h>
#include <glib.h>

static const char *
version (int number)
{
  g_autofree char *text = g_strdup_printf ("%d.%d", number / 1000, number % 1000 / 10);
  return g_intern_string (text);
}

const char *
weft_driver_missing (void)
{
  int driver = 0, n = 0;
  g_autofree char *text = NULL;

  if (cudaDriverGetVersion (&driver) != cudaSuccess || driver == 0)
    text = g_strdup_printf ("no NVIDIA driver: found none, wanted one for CUDA %s or newer",
                            version (CUDART_VERSION));
  else if (driver < CUDART_VERSION / 1000 * 1000)
    text = g_strdup_printf ("NVIDIA driver: found one for CUDA %s, wanted %s or newer",
                            version (driver), version (CUDART_VERSION / 1000 * 1000));
  else if (cudaGetDeviceCount (&n) != cudaSuccess || n == 0)
    text = g_strdup_printf ("no GPU: found a driver for CUDA %s and no device, wanted one: %s",
                            version (driver), cudaGetErrorString (cudaGetLastError ()));
  return text ? g_intern_string (text) : NULL;
}

gboolean
weft_driver_compiles (gboolean quick)
{
  int device = 0, major = 0;

  if (!quick || cudaGetDevice (&device) != cudaSuccess ||
      cudaDeviceGetAttribute (&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess ||
      major == 9)
    return FALSE;
  g_printerr ("weft: found a GPU of compute capability %d.x, and code for 9.0 in this build: "
              "the driver compiles the kernels at their first use, which may take minutes; `cmake "
              "-UWEFT_CUDA_ARCHITECTURES build && cmake --build build` builds them for all GPUs\n",
              major);
  return TRUE;
}

uint8_t
weft_driver_warpgroups_named (const char *text)
{
  return g_strcmp0 (text, "0") == 0          ? WEFT_NO_WARPGROUPS
         : g_strcmp0 (text, "producer") == 0 ? WEFT_WARPGROUPS_PRODUCER
                                             : WEFT_WARPGROUPS;
}

uint8_t
weft_driver_warpgroups (uint8_t most)
{
  int device = 0, major = 0;

  if (cudaGetDevice (&device) != cudaSuccess ||
      cudaDeviceGetAttribute (&major, cudaDevAttrComputeCapabilityMajor, device) != cudaSuccess)
    return WEFT_NO_WARPGROUPS;
  return major == 9 ? most : WEFT_NO_WARPGROUPS;
}
