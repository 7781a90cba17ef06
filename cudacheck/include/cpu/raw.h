// raw.h: defines RAW and runtime for the headers that a kernel's text includes. Headers include it at their start, and
// end_raw.h at their end, so that a text may use these names itself.
#ifndef NANOEULER_RAW
// Marks a function as not instrumented: it belongs to the runtime, or reports its accesses itself.
#if defined(__clang__)
#define NANOEULER_RAW __attribute__((__disable_sanitizer_instrumentation__, __no_sanitize__("undefined", "thread", "coverage")))
#elif defined(CHECKED)
#define NANOEULER_RAW __attribute__((__no_sanitize__("thread"), __no_sanitize__("undefined"), __no_sanitize_coverage__))
#else
#define NANOEULER_RAW
#endif
#endif
#pragma push_macro("RAW")
#undef RAW
#define RAW NANOEULER_RAW
#pragma push_macro("runtime")
#undef runtime
#define runtime nanoeuler_runtime
