/* activation.cuh - activations of one element and their slopes.
 *
 * GELU is the tanh form, computed with the logistic function (kernels/activation.c). */
#pragma once
#include "kernels/cuda/device.cuh"

#define TWICE_ROOT_2_PI 1.5957691216057308f
#define CUBIC 0.044715f

static __device__ __forceinline__ float
logistic (float z)
{
  return 1 / (1 + expf (-z));
}

struct gelu {
  __device__ float
  operator() (float x, float) const
  {
    return x * logistic (TWICE_ROOT_2_PI * (x + CUBIC * x * x * x));
  }
};

struct gelu_slope {
  __device__ float
  operator() (float x, float dy) const
  {
    float yes = logistic (TWICE_ROOT_2_PI * (x + CUBIC * x * x * x));
    float dz = TWICE_ROOT_2_PI * (1 + 3 * CUBIC * x * x);
    return dy * (yes + x * yes * (1 - yes) * dz);
  }
};

/* GELU by the error function (activation = gelu_erf). */
struct gelu_erf {
  __device__ float
  operator() (float x, float) const
  {
    return x * (0.5f + 0.5f * erff (x * 0.70710678118654752f));
  }
};

struct gelu_erf_slope {
  __device__ float
  operator() (float x, float dy) const
  {
    float share = 0.5f + 0.5f * erff (x * 0.70710678118654752f);
    return dy * (share + x * 0.39894228040143268f * expf (-0.5f * x * x));
  }
};

struct relu {
  __device__ float
  operator() (float x, float) const
  {
    return x < 0 ? 0 : x;
  }
};

struct relu_slope {
  __device__ float
  operator() (float x, float dy) const
  {
    return x > 0 ? dy : 0;
  }
};

struct relu2 {
  __device__ float
  operator() (float x, float) const
  {
    float above = x < 0 ? 0 : x;
    return above * above;
  }
};

struct relu2_slope {
  __device__ float
  operator() (float x, float dy) const
  {
    return 2 * (x < 0 ? 0 : x) * dy;
  }
};

/* silu (gate) * up */
static __device__ __forceinline__ float
swiglu_value (float gate, float up)
{
  return gate * logistic (gate) * up;
}

struct gate_and_up {
  float gate, up;
};

static __device__ __forceinline__ struct gate_and_up
swiglu_slopes (float gate, float up, float dy)
{
  float yes = logistic (gate);
  struct gate_and_up d = { dy * up * yes * (1 + gate * (1 - yes)), dy * gate * yes };

  return d;
}

/* Gate activation times `up`, and the gradients of both. silu_gate: silu; gelu_gate (activation =
 * geglu): GELU in its tanh form. */
struct silu_gate {
  static __device__ __forceinline__ float
  value (float gate, float up)
  {
    return swiglu_value (gate, up);
  }
  static __device__ __forceinline__ struct gate_and_up
  slopes (float gate, float up, float dy)
  {
    return swiglu_slopes (gate, up, dy);
  }
};

struct gelu_gate {
  static __device__ __forceinline__ float
  value (float gate, float up)
  {
    return gelu () (gate, 0) * up;
  }
  static __device__ __forceinline__ struct gate_and_up
  slopes (float gate, float up, float dy)
  {
    struct gate_and_up d = { gelu_slope () (gate, dy * up), dy * gelu () (gate, 0) };
    return d;
  }
};
