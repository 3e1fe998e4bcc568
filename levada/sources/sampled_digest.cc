#include "levada/sources/sampled_digest.h"

#include <algorithm>
#include <vector>

#include "levada/base/hash.h"

namespace levada {

std::string sampled_digest(const File& file, std::uint64_t size) {
  constexpr std::uint64_t blocks = 64, block_bytes = 4096;
  Digest digest;
  std::vector<char> block(std::min(size, blocks * block_bytes));
  const auto read = [&](std::uint64_t offset) {
    digest.update(std::string_view(block.data(), read_fully(file, offset, block)));
  };
  if (size <= blocks * block_bytes) {
    read(0);
    return digest.hex();
  }
  block.resize(block_bytes);
  const auto last = size - block_bytes;
  // Divides before multiplying, because the product may overflow.
  const auto offset = [&](std::uint64_t i) { return last / (blocks - 1) * i + last % (blocks - 1) * i / (blocks - 1); };
  for (std::uint64_t i = 0; i < blocks; ++i) file.will_read(offset(i), block_bytes);
  for (std::uint64_t i = 0; i < blocks; ++i) read(offset(i));
  return digest.hex();
}

}  // namespace levada
