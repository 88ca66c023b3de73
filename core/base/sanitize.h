/* sanitize.h - which sanitizers this build has: GCC defines macros, clang has __has_feature. */
#pragma once

#if defined(__has_feature)
#define WEFT_HAS_FEATURE(x) __has_feature (x)
#else
#define WEFT_HAS_FEATURE(x) 0
#endif

#if defined(__SANITIZE_ADDRESS__) || WEFT_HAS_FEATURE (address_sanitizer)
#define WEFT_ADDRESS_SANITIZER 1
#else
#define WEFT_ADDRESS_SANITIZER 0
#endif

#if defined(__SANITIZE_THREAD__) || WEFT_HAS_FEATURE (thread_sanitizer)
#define WEFT_THREAD_SANITIZER 1
#else
#define WEFT_THREAD_SANITIZER 0
#endif
