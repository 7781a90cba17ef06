// what: words are counted up to a terminating 0 that the bytes lack
// array text: np.frombuffer(b"seven bridges of Koenigsberg", np.uint8).copy()
// array words: np.zeros(1, np.int32)
// launch: count<<<1, 1>>>(text, words)
// finds: out of bounds | text
extern "C" __global__ void count(const unsigned char* text, int* words) {
  int n = 0;
  bool inside = false;
  for (int i = 0; text[i]; i++) {  // HERE
    bool letter = text[i] != ' ';
    n += letter && !inside;
    inside = letter;
  }
  *words = n;
}
