// Reads arbitrary bytes as a file of items. An accepted file must yield as many items as it declares.
#include <cstdlib>
#include <string>

#include "levada/base/error.h"
#include "levada/pipeline/item_file.h"
#include "levada/sources/memory_file_testing.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string bytes(reinterpret_cast<const char*>(data), size);
  try {
    const levada::pipeline::ItemFile file(std::make_unique<levada::MemoryFile>("part.items", std::move(bytes)));
    for (std::int64_t at = 0; at < file.size();) {
      const auto chunk = file.read(at);
      if (chunk.first != at || chunk.items.empty()) std::abort();
      at += std::ssize(chunk.items);
    }
  } catch (const levada::SourceError&) {  // refused
  }
  return 0;
}
