/* A double of the CUDA driver on a machine without a GPU: it accepts code without reading it,
 * reports no device, and runs nothing. It has the functions that cuDNN 9 looks up. They return 0
 * (CUDA_SUCCESS) unless noted otherwise. */

enum { NO_DEVICE = 100 /* CUDA_ERROR_NO_DEVICE */, VERSION = 13000 };

#define NO_DRIVER_ANSWER(name)                                                                     \
  int name (void);                                                                                 \
  int name (void)                                                                                  \
  {                                                                                                \
    return 0;                                                                                      \
  }
NO_DRIVER_ANSWER (cuCtxGetCurrent)
NO_DRIVER_ANSWER (cuCtxGetLimit)
NO_DRIVER_ANSWER (cuCtxPopCurrent)
NO_DRIVER_ANSWER (cuCtxPushCurrent)
NO_DRIVER_ANSWER (cuDeviceGet)
NO_DRIVER_ANSWER (cuFuncSetAttribute)
NO_DRIVER_ANSWER (cuKernelGetAttribute)
NO_DRIVER_ANSWER (cuKernelSetAttribute)
NO_DRIVER_ANSWER (cuLaunchCooperativeKernel)
NO_DRIVER_ANSWER (cuLaunchKernel)
NO_DRIVER_ANSWER (cuLaunchKernelEx)
NO_DRIVER_ANSWER (cuLibraryLoadFromFile)
NO_DRIVER_ANSWER (cuLibraryUnload)
NO_DRIVER_ANSWER (cuLinkAddData)
NO_DRIVER_ANSWER (cuLinkComplete)
NO_DRIVER_ANSWER (cuLinkCreate)
NO_DRIVER_ANSWER (cuLinkDestroy)
NO_DRIVER_ANSWER (cuStreamGetCtx)

/* Functions that return handles of loaded code. cuDNN never dereferences these handles. */
#define NO_DRIVER_MAKE(name)                                                                       \
  int name (void **out);                                                                           \
  int name (void **out)                                                                            \
  {                                                                                                \
    static char something;                                                                         \
    *out = &something;                                                                             \
    return 0;                                                                                      \
  }
NO_DRIVER_MAKE (cuLibraryLoadData)
NO_DRIVER_MAKE (cuLibraryGetKernel)
NO_DRIVER_MAKE (cuKernelGetFunction)

#define NO_DRIVER_NUMBER(name, number, answer)                                                     \
  int name (int *out);                                                                             \
  int name (int *out)                                                                              \
  {                                                                                                \
    *out = number;                                                                                 \
    return answer;                                                                                 \
  }
NO_DRIVER_NUMBER (cuDriverGetVersion, VERSION, 0)
NO_DRIVER_NUMBER (cuDeviceGetCount, 0, NO_DEVICE)
NO_DRIVER_NUMBER (cuOccupancyMaxActiveBlocksPerMultiprocessor, 1, 0)
NO_DRIVER_NUMBER (cuOccupancyMaxPotentialClusterSize, 1, 0)

#define NO_DRIVER_TEXT(name)                                                                       \
  int name (int error, const char **out);                                                          \
  int name (int error, const char **out)                                                           \
  {                                                                                                \
    *out = error == NO_DEVICE ? "no device" : "an error of the driver";                            \
    return 0;                                                                                      \
  }
NO_DRIVER_TEXT (cuGetErrorName)
NO_DRIVER_TEXT (cuGetErrorString)

int cuInit (unsigned flags);
int
cuInit (unsigned flags)
{
  (void) flags;
  return NO_DEVICE;
}
