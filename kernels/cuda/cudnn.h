/* cudnn.h - the part of NVIDIA cuDNN that attention needs: the library, loaded at run time, and its
 * "graph API" through the C interface (cudnn_graph_v9.h).
 *
 * Neither the library nor its headers are needed to build: functions are looked up by name, and the
 * constants of the interface, which are stable between versions, are repeated here. If the headers
 * are found at build time, exec_gpu/cuda/module/fused.c checks the constants against them. */
#pragma once
#include <glib.h>
#include <stddef.h>
#include <stdint.h>

/* Oldest supported version of cuDNN: masking with minus infinity needs 9.10, and plans for a device
 * that is described without a handle need 9.11. */
#define WEFT_CUDNN_OLDEST 91100

typedef void *weft_cudnn_thing; /* cudnnBackendDescriptor_t */

/* cudnnStatus_t is declared as int here; cudnnHandle_t and cudaStream_t are declared as
 * pointers. */
#define WEFT_CUDNN_CALL_LIST(X)                                                                    \
  X (size_t, GetVersion, (void))                                                                   \
  X (const char *, GetErrorString, (int status))                                                   \
  X (void, GetLastErrorString, (char *text, size_t bytes))                                         \
  X (int, Create, (void **handle))                                                                 \
  X (int, Destroy, (void *handle))                                                                 \
  X (int, SetStream, (void *handle, void *stream))                                                 \
  X (int, BackendCreateDescriptor, (int type, weft_cudnn_thing *out))                              \
  X (int, BackendDestroyDescriptor, (weft_cudnn_thing thing))                                      \
  X (int, BackendSetAttribute,                                                                     \
     (weft_cudnn_thing thing, int name, int type, int64_t n, const void *values))                  \
  X (int, BackendGetAttribute,                                                                     \
     (weft_cudnn_thing thing, int name, int type, int64_t room, int64_t *n, void *values))         \
  X (int, BackendFinalize, (weft_cudnn_thing thing))                                               \
  X (int, BackendExecute, (void *handle, weft_cudnn_thing plan, weft_cudnn_thing pack))

struct weft_cudnn_calls {
#define WEFT_CUDNN_POINTER(type, name, parameters) type (*name) parameters;
  WEFT_CUDNN_CALL_LIST (WEFT_CUDNN_POINTER)
#undef WEFT_CUDNN_POINTER
};

/* Loads the library at `place`; NULL: from the loader's path or an installed CUDA toolkit. The
 * library stays loaded until the process ends; the caller frees the table. On failure: NULL, and
 * *why is a static text that lists what was tried. */
struct weft_cudnn_calls *weft_cudnn_open (const char *place, const char **why);

/* Constants of cuDNN's interface. Columns: Weft's name, cuDNN's name, value. */
#define WEFT_CUDNN_NUMBER_LIST(X)                                                                  \
  X (TYPE_HANDLE, CUDNN_TYPE_HANDLE, 0)                                                            \
  X (TYPE_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1)                                                      \
  X (TYPE_BOOLEAN, CUDNN_TYPE_BOOLEAN, 2)                                                          \
  X (TYPE_INT64, CUDNN_TYPE_INT64, 3)                                                              \
  X (TYPE_VOID_PTR, CUDNN_TYPE_VOID_PTR, 6)                                                        \
  X (TYPE_HEUR_MODE, CUDNN_TYPE_HEUR_MODE, 8)                                                      \
  X (TYPE_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 14)                                           \
  X (TYPE_THING, CUDNN_TYPE_BACKEND_DESCRIPTOR, 15)                                                \
  X (TYPE_REDUCTION, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 18)                                       \
  X (TYPE_CHAR, CUDNN_TYPE_CHAR, 24)                                                               \
  X (FLOAT, CUDNN_DATA_FLOAT, 0)                                                                   \
  X (HALF, CUDNN_DATA_HALF, 2)                                                                     \
  X (INT32, CUDNN_DATA_INT32, 4)                                                                   \
  X (BF16, CUDNN_DATA_BFLOAT16, 9)                                                                 \
  X (BOOLEAN, CUDNN_DATA_BOOLEAN, 11)                                                              \
  X (POINTWISE, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, 0)                                             \
  X (ENGINECFG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 3)                                             \
  X (ENGINEHEUR, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, 4)                                           \
  X (PLAN, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5)                                             \
  X (POINTWISE_OP, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13)                               \
  X (GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15)                                           \
  X (PACK, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, 16)                                              \
  X (TENSOR, CUDNN_BACKEND_TENSOR_DESCRIPTOR, 17)                                                  \
  X (MATMUL, CUDNN_BACKEND_MATMUL_DESCRIPTOR, 18)                                                  \
  X (MATMUL_OP, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, 19)                                     \
  X (REDUCTION, CUDNN_BACKEND_REDUCTION_DESCRIPTOR, 21)                                            \
  X (REDUCTION_OP, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, 22)                               \
  X (RESHAPE_OP, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, 31)                                   \
  X (DEVICE, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, 38)                                              \
  X (POINTWISE_MODE, CUDNN_ATTR_POINTWISE_MODE, 0)                                                 \
  X (POINTWISE_PREC, CUDNN_ATTR_POINTWISE_MATH_PREC, 1)                                            \
  X (POINTWISE_AXIS, CUDNN_ATTR_POINTWISE_AXIS, 9)                                                 \
  X (HEUR_MODE, CUDNN_ATTR_ENGINEHEUR_MODE, 200)                                                  \
  X (HEUR_GRAPH, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 201)                                       \
  X (HEUR_RESULTS, CUDNN_ATTR_ENGINEHEUR_RESULTS, 202)                                             \
  X (HEUR_DEVICE, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, 204)                                           \
  X (PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, 400)                                           \
  X (PLAN_CONFIG, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401)                                    \
  X (PLAN_WORKSPACE, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402)                                \
  X (PLAN_DEVICE, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, 407)                                       \
  X (POINTWISE_DESC, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750)                            \
  X (POINTWISE_X, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 751)                                       \
  X (POINTWISE_B, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 752)                                       \
  X (POINTWISE_Y, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 753)                                       \
  X (POINTWISE_T, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, 758)                                       \
  X (GRAPH_HANDLE, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, 800)                                          \
  X (GRAPH_OPS, CUDNN_ATTR_OPERATIONGRAPH_OPS, 801)                                                \
  X (TENSOR_ALIGNMENT, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 900)                                      \
  X (TENSOR_TYPE, CUDNN_ATTR_TENSOR_DATA_TYPE, 901)                                                \
  X (TENSOR_DIMS, CUDNN_ATTR_TENSOR_DIMENSIONS, 902)                                               \
  X (TENSOR_STRIDES, CUDNN_ATTR_TENSOR_STRIDES, 903)                                               \
  X (TENSOR_ID, CUDNN_ATTR_TENSOR_UNIQUE_ID, 906)                                                  \
  X (TENSOR_VIRTUAL, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 907)                                            \
  X (TENSOR_BY_VALUE, CUDNN_ATTR_TENSOR_IS_BY_VALUE, 908)                                          \
  X (PACK_IDS, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, 1000)                                           \
  X (PACK_POINTERS, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, 1001)                                   \
  X (PACK_WORKSPACE, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 1003)                                      \
  X (MATMUL_PREC, CUDNN_ATTR_MATMUL_COMP_TYPE, 1500)                                               \
  X (MATMUL_A, CUDNN_ATTR_OPERATION_MATMUL_ADESC, 1520)                                            \
  X (MATMUL_B, CUDNN_ATTR_OPERATION_MATMUL_BDESC, 1521)                                            \
  X (MATMUL_C, CUDNN_ATTR_OPERATION_MATMUL_CDESC, 1522)                                            \
  X (MATMUL_DESC, CUDNN_ATTR_OPERATION_MATMUL_DESC, 1523)                                          \
  X (REDUCTION_OPERATOR, CUDNN_ATTR_REDUCTION_OPERATOR, 1600)                                      \
  X (REDUCTION_PREC, CUDNN_ATTR_REDUCTION_COMP_TYPE, 1601)                                         \
  X (REDUCTION_X, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, 1610)                                      \
  X (REDUCTION_Y, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, 1611)                                      \
  X (REDUCTION_DESC, CUDNN_ATTR_OPERATION_REDUCTION_DESC, 1612)                                    \
  X (RESHAPE_X, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, 2200)                                          \
  X (RESHAPE_Y, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, 2201)                                          \
  X (DEVICE_JSON, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, 2702)                                 \
  X (ADD, CUDNN_POINTWISE_ADD, 0)                                                                  \
  X (MUL, CUDNN_POINTWISE_MUL, 1)                                                                  \
  X (DIV, CUDNN_POINTWISE_DIV, 6)                                                                  \
  X (SUB, CUDNN_POINTWISE_SUB, 9)                                                                  \
  X (EXP, CUDNN_POINTWISE_EXP, 13)                                                                 \
  X (LOG, CUDNN_POINTWISE_LOG, 15)                                                                 \
  X (IDENTITY, CUDNN_POINTWISE_IDENTITY, 21)                                                       \
  X (CMP_GT, CUDNN_POINTWISE_CMP_GT, 302)                                                          \
  X (CMP_GE, CUDNN_POINTWISE_CMP_GE, 303)                                                          \
  X (GEN_INDEX, CUDNN_POINTWISE_GEN_INDEX, 501)                                                    \
  X (SELECT, CUDNN_POINTWISE_BINARY_SELECT, 601)                                                   \
  X (REDUCE_ADD, CUDNN_REDUCE_TENSOR_ADD, 0)                                                       \
  X (REDUCE_MAX, CUDNN_REDUCE_TENSOR_MAX, 3)                                                       \
  X (HEUR_A, CUDNN_HEUR_MODE_A, 3)

enum {
#define WEFT_CUDNN_NUMBER(name, theirs, value) WEFT_CUDNN_##name = value,
  WEFT_CUDNN_NUMBER_LIST (WEFT_CUDNN_NUMBER)
#undef WEFT_CUDNN_NUMBER
};

/* ------------------------------------------------------------------------------ graphs */

enum { WEFT_CUDNN_MOST_THINGS = 160, WEFT_CUDNN_MOST_OPS = 32, WEFT_CUDNN_MOST_BOUND = 24 };

struct weft_cudnn_view {
  int64_t dim[4], stride[4]; /* batch, heads, rows, columns; strides in elements */
};

/* A tensor that is bound to memory when a plan runs: device memory by slot, a host constant, or
 * part of the scratch. */
struct weft_cudnn_bound {
  int64_t id;
  int slot;        /* index of the pointer that the caller passes, or -1 */
  /* offset in elements from that pointer; without a slot, offset in bytes from the start of the
   * scratch */
  uint64_t offset;
  float number;
  gboolean is_number;
};

/* A graph under construction, or the plan made from it. The first error is kept; later calls then
 * do nothing. */
typedef struct weft_cudnn_graph {
  const struct weft_cudnn_calls *calls;
  /* a cudnnHandle_t; NULL: the device is only described, and plans cannot run */
  void *handle;
  weft_cudnn_thing device; /* descriptor of the device, or NULL (the device of the handle) */
  weft_cudnn_thing thing[WEFT_CUDNN_MOST_THINGS], op[WEFT_CUDNN_MOST_OPS], plan;
  int n_things, n_ops, n_bound;
  struct weft_cudnn_bound bound[WEFT_CUDNN_MOST_BOUND];
  int64_t id;              /* id of the newest tensor of the graph */
  /* number of scratch bytes of Weft's own tensors; number of workspace bytes of the library, which
   * follow */
  uint64_t own, workspace;
  char error[512];         /* "": no error */
} weft_cudnn_graph;

void weft_cudnn_graph_clear (weft_cudnn_graph *g);
G_DEFINE_AUTO_CLEANUP_CLEAR_FUNC (weft_cudnn_graph, weft_cudnn_graph_clear)

/* A tensor of the graph in the caller's memory: at `offset` elements after the pointer with index
 * `slot`. */
weft_cudnn_thing weft_cudnn_tensor (weft_cudnn_graph *g, int type,
                                    const struct weft_cudnn_view *view, int slot, uint64_t offset);
/* A tensor of the graph between two operations, which is not stored in memory. */
weft_cudnn_thing weft_cudnn_between (weft_cudnn_graph *g, int type,
                                     const struct weft_cudnn_view *view);
/* A tensor of the graph between two operations, which is stored as fp32 in scratch. */
weft_cudnn_thing weft_cudnn_kept (weft_cudnn_graph *g, const struct weft_cudnn_view *view);
weft_cudnn_thing weft_cudnn_number (weft_cudnn_graph *g, float number);

void weft_cudnn_matmul (weft_cudnn_graph *g, weft_cudnn_thing a, weft_cudnn_thing b,
                        weft_cudnn_thing c);
void weft_cudnn_reduce (weft_cudnn_graph *g, int operator, weft_cudnn_thing x, weft_cudnn_thing y);
void weft_cudnn_reshape (weft_cudnn_graph *g, weft_cudnn_thing x, weft_cudnn_thing y);

/* A pointwise operation: y = x `mode` b. Mode SELECT: y is x where t is true, and b elsewhere. Mode
 * GEN_INDEX: y is the index along `axis`. */
struct weft_cudnn_point {
  int mode, precision; /* data type in which the operation computes: WEFT_CUDNN_FLOAT ... */
  int64_t axis;
  weft_cudnn_thing x, b, t, y; /* b and t may be NULL, depending on `mode` */
};
void weft_cudnn_pointwise (weft_cudnn_graph *g, const struct weft_cudnn_point *p);

/* Makes the first plan that the library's heuristics suggest and that the library can finalize.
 * FALSE: no such plan; g->error says why. */
gboolean weft_cudnn_finish (weft_cudnn_graph *g);

/* Describes a device for graphs without a handle: JSON of a CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR. */
void weft_cudnn_describe (weft_cudnn_graph *g, const char *json);

/* Runs the plan on a stream; `pointer` is indexed by slot. Returns NULL, or an error as static
 * text. */
const char *weft_cudnn_run (weft_cudnn_graph *g, void *const *pointer, void *scratch, void *stream);
