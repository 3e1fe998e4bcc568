// Texts and a token cache in a temporary folder, for tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "levada/sources/scratch_dir_testing.h"
#include "levada/tokens/token_cache.h"
#include "levada/tokens/tokenizer_testing.h"

namespace levada {

class TokenCaching : public ::testing::Test {
 protected:
  TokenCache open(std::optional<std::uint64_t> max_bytes = {}) {
    return TokenCache({.dir = dir_.file("cache"), .max_bytes = max_bytes, .warn = [this](const std::string& text) {
                         const std::lock_guard lock(mutex_);
                         warnings_.push_back(text);
                       }});
  }
  CachedTokens tokenize(TokenCache& cache, const std::string& path) const {
    return cache.tokenize({path}, {.tokenizer = tokenizer_, .threads = 1}).at(0);
  }
  /// Tokenizes with a cache that is closed afterwards.
  CachedTokens tokenize_alone(const std::string& path) {
    auto cache = open();
    return tokenize(cache, path);
  }

  /// Writes some lines, `megabytes` of them.
  std::string write_large(std::size_t megabytes) const {
    std::string lines;
    while (lines.size() < megabytes << 20)
      lines += "{\"text\":\"" + std::string(1000, char('a' + lines.size() % 26)) + "\"}\n";
    return dir_.write("large.jsonl", lines);
  }

  std::vector<std::string> names_in_cache() const {
    std::vector<std::string> names;
    for (const auto& file : std::filesystem::directory_iterator(dir_.file("cache/tokens"))) {
      const auto name = file.path().filename().string();
      if (name != "lock" && !name.starts_with("in-use-")) names.push_back(name);
    }
    return names;
  }

  ScratchDir dir_;
  std::mutex mutex_;
  std::vector<std::string> warnings_;
  std::shared_ptr<HookedTokenizer> tokenizer_ = std::make_shared<HookedTokenizer>();
  const std::string a_ = dir_.write("a.jsonl", "{\"text\":\"hello\"}\n{\"text\":\"\"}\nbad\n{\"text\":\"you\"}\n");
  const std::string b_ = dir_.write("b.txt", "some more");
};

}  // namespace levada
