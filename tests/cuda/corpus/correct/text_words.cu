// what: the beginnings of words counted by neighbours
// array text: np.frombuffer(b"  how many words  are in this line? ", np.uint8).copy()
// array words: np.zeros(1, np.int32)
// launch: count<<<1, 64>>>(text, text.size, words)
// gives words: np.array([len(bytes(text).split())])
extern "C" __global__ void count(const unsigned char* text, int n, int* words) {
  int i = threadIdx.x;
  bool begins = i < n && text[i] != ' ' && (i == 0 || text[i - 1] == ' ');
  int all = __syncthreads_count(begins);
  if (i == 0) *words = all;
}
