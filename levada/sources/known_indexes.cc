#include "levada/sources/known_indexes.h"

#include <fmt/format.h>

#include <chrono>

#include "levada/base/atomic_file.h"
#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/base/hash.h"
#include "levada/base/json.h"
#include "levada/sources/sampled_digest.h"

namespace levada {
namespace {

constexpr int record_version = 1;
constexpr std::size_t max_record_bytes = std::size_t{4} << 10;

std::string text_of(const MegatronIndex& index) {
  return json_text(nlohmann::ordered_json{{"version", record_version},
                                          {"dtype", *megatron_code(index.dtype)},
                                          {"sequences", index.sequences},
                                          {"documents", index.documents},
                                          {"has_modes", index.has_modes},
                                          {"tokens", index.tokens()},
                                          {"digest", index.digest}}) +
         "\n";
}

/// Returns nothing for a text that is damaged, of another version, or does not fit the sizes of the files.
std::optional<MegatronIndex> parse(const std::string& text, std::uint64_t idx_bytes, std::uint64_t bin_bytes) try {
  const auto json = parse_json(text, 1, "");
  const auto dtype = megatron_dtype(json.at("dtype").get<std::uint8_t>());
  if (json.at("version") != record_version || !dtype) return std::nullopt;
  MegatronIndex index{.dtype = *dtype,
                      .sequences = json.at("sequences"),
                      .documents = json.at("documents"),
                      .has_modes = json.at("has_modes"),
                      .in_order = true,
                      .runs = TokenRuns(dtype->bytes(1)),
                      .digest = json.at("digest")};
  const std::int64_t tokens = json.at("tokens");
  if (tokens < 0 || checked_mul(static_cast<std::uint64_t>(tokens), dtype->bytes(1)) != bin_bytes) return std::nullopt;
  if (index_bytes_of(index) != idx_bytes) return std::nullopt;
  index.runs.add(0, tokens);
  return index;
} catch (const InvalidArgument&) {
  return std::nullopt;
} catch (const nlohmann::json::exception&) {
  return std::nullopt;
}

}  // namespace

std::optional<std::string> KnownIndexes::path_of(const File& idx, const FileIdentity& identity, const File& bin) const {
  // A remote file may have no modification time, and is cached by blocks.
  if (!files_.has_folder() || identity.size < min_bytes_ || identity.modified_ns == 0 || !identity.tag.empty()) {
    return std::nullopt;
  }
  Digest key;
  key.update(fmt::format("{} {} {} {}", identity.size, identity.modified_ns, bin.identity().size,
                         sampled_digest(idx, identity.size)));
  return files_.path_of("idx", key);
}

std::optional<MegatronIndex> KnownIndexes::find(const File& idx, const File& bin) const {
  const auto identity = idx.identity();
  const auto path = path_of(idx, identity, bin);
  if (!path) return std::nullopt;
  const auto trust = files_.trust();
  const auto text = trust ? read_trusted(*path, *trust, max_record_bytes) : std::nullopt;
  if (!text) return std::nullopt;
  auto index = parse(*text, identity.size, bin.identity().size);
  if (index) KnownFiles::note_use(*path);
  return index;
}

void KnownIndexes::add(const File& idx, const FileIdentity& before, const File& bin,
                       const MegatronIndex& index) const noexcept try {
  using std::chrono::system_clock;
  // A file system's clock may tick only every two seconds, so a file that was just written may change once more without
  // another modification time.
  constexpr auto settled = std::chrono::seconds(5);
  const system_clock::time_point modified{
      std::chrono::duration_cast<system_clock::duration>(std::chrono::nanoseconds(before.modified_ns))};
  if (!index.in_order || system_clock::now() < modified + settled) return;
  const auto path = path_of(idx, before, bin);
  expect_unchanged(idx, before);  // so the sampled blocks are those of the content that was read
  const auto trust = path ? files_.trust_for_writing() : std::nullopt;
  if (!trust) return;
  AtomicFile file(*path, {}, trust->file_mode());
  file.write(as_bytes(text_of(index)));
  file.publish(false);
} catch (const std::exception&) {  // the next start reads the .idx again
}

}  // namespace levada
