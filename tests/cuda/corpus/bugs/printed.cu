// what: printf is given a text at a wild address
// launch: wild_text<<<1, 1>>>()
// finds: out of bounds: | printf: the text of %s is at an address that is in no
extern "C" __global__ void wild_text() {
  printf("%d %s", 1, (const char*)0x1234);  // THERE
}

// what: printf is given an array of numbers for a text
// array x: np.full(1, -1.2345678, f32)
// launch: text_without_end<<<1, 1>>>(x)
// finds: out of bounds: | printf: the text of %s has no end
extern "C" __global__ void text_without_end(float* x) {
  printf("%5.2f %lld %s", 1.0, 2ll, (const char*)x);  // THERE
}

// what: printf has no format
// launch: null_format<<<1, 1>>>()
// finds: out of bounds: | printf: the format is a null pointer
extern "C" __global__ void null_format() {
  printf((const char*)0);  // THERE
}

// what: printf is to count what it wrote
// array x: np.zeros(1, np.int32)
// launch: counted<<<1, 1>>>(x)
// finds: failure: | printf: a GPU has no %n
extern "C" __global__ void counted(int* x) {
  printf("%n", x);  // THERE
}

// what: printf is given a width that no launch keeps
// launch: too_wide<<<1, 1>>>()
// finds: failure: | printf: a width or precision must be at most 65536, got 2147483647
extern "C" __global__ void too_wide() {
  printf("%-*d", 2147483647, 1);  // THERE
}

// what: printf is given a precision that no launch keeps
// launch: too_precise<<<1, 1>>>()
// finds: failure: | printf: a width or precision must be at most 65536, got 99999
extern "C" __global__ void too_precise() {
  printf("%.99999f", 1.0);  // THERE
}
