#include "levada/corpus/known_orders.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "levada/base/atomic_file.h"
#include "levada/base/deadline.h"
#include "levada/base/text.h"

namespace levada {
namespace {

Digest key_of(const SourceFiles& files, const PackingOptions& options) {
  Digest key;
  key.update(fmt::format("{} {} {} {} {};", PackedOrder::version, PackedOrder::window, options.sequence, options.pad_to,
                         options.max_pieces));
  files.add_to(key);
  for (std::size_t i = 0; i < files.size(); ++i) key.update(fmt::format("{} ", files[i].first_document()));
  return key;
}

PackedDocuments documents_in(const SourceFiles& files, const KnownOrders::Progress& progress) {
  return {.documents = files.documents(),
          .tokens = files.tokens(),
          .visit = [&](const std::function<void(std::int64_t tokens)>& visit) {
            for (std::size_t i = 0; i < files.size(); ++i) files[i].visit_documents(visit, progress);
          }};
}

}  // namespace

PackedOrder KnownOrders::order_of(const SourceFiles& files, const PackingOptions& options,
                                  const Progress& progress) const {
  const auto documents = documents_in(files, progress);
  if (known_.has_folder() && PackedOrder::max_bytes(options, documents) >= min_bytes_) {
    const auto key = key_of(files, options);
    if (auto order = find_or_write(known_.path_of("order", key), key.hex(), options, documents, progress)) {
      return std::move(*order);
    }
  }
  return {options, documents};
}

std::optional<PackedOrder> KnownOrders::find(const std::string& path, const std::string& key,
                                             const PackingOptions& options) const {
  const auto trust = known_.trust();
  auto order = trust ? PackedOrder::open(path, *trust, key, options) : std::nullopt;
  if (order) KnownFiles::note_use(path);
  return order;
}

std::optional<PackedOrder> KnownOrders::find_or_write(const std::string& path, const std::string& key,
                                                      const PackingOptions& options, const PackedDocuments& documents,
                                                      const Progress& progress) const {
  // Packing takes about a quarter of a microsecond per document.
  const auto deadline = Deadline::after(std::chrono::hours(1));
  std::chrono::seconds pause(5);
  auto reminder = Deadline::after(pause);
  while (true) {
    if (auto order = find(path, key, options)) return order;
    const auto trust = known_.trust_for_writing();
    if (!trust) return std::nullopt;
    try {
      AtomicFile file(path, {}, trust->file_mode());
      if (auto order = find(path, key, options)) return order;  // another process has just made it
      PackedOrder::write(file, key, options, documents);
      file.publish(false);
      return find(path, key, options);
    } catch (const FileBusy&) {
      if (deadline.expired()) return std::nullopt;
    } catch (const WriteFailed&) {  // such as a full disk
      return std::nullopt;
    }
    if (progress)
      progress({.path = printable(path), .bytes_done = 0, .bytes_total = PackedOrder::max_bytes(options, documents)});
    if (warn_ && reminder.expired()) {
      warn_(fmt::format("waiting for the order of packed samples that another process makes ({})", printable(path)));
      reminder = Deadline::after(pause *= 2);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace levada
