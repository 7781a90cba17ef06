// what: for (;;) with an empty statement
// launch: empty_statement<<<1, 32>>>()
// option: seconds=0.3
// finds: endless:
extern "C" __global__ void empty_statement() {
  if (threadIdx.x == 5)
    for (;;) ;  // THERE
}

// what: for (;;) with empty braces
// launch: empty_braces<<<1, 32>>>()
// option: seconds=0.3
// finds: endless:
extern "C" __global__ void empty_braces() {
  if (threadIdx.x == 5)
    for (;;) {}  // THERE
}

// what: while (true) with an empty statement
// launch: while_true<<<1, 32>>>()
// option: seconds=0.3
// finds: endless:
extern "C" __global__ void while_true() {
  if (threadIdx.x == 5)
    while (true) ;  // THERE
}

// what: a goto to itself
// launch: goto_itself<<<1, 32>>>()
// option: seconds=0.3
// finds: endless:
extern "C" __global__ void goto_itself() {
  if (threadIdx.x == 5)
    again: goto again;  // THERE
}
