#include <fmt/format.h>

#include <ctime>

#include "levada/base/bytes.h"
#include "levada/base/error.h"
#include "levada/base/json.h"
#include "levada/base/text.h"
#include "levada/cli/command.h"
#include "levada/cli/text_options.h"
#include "levada/report/numbers.h"
#include "levada/tokens/token_cache.h"

namespace levada::cli {
namespace {

struct CacheCommandArguments {
  CacheArguments cache;
  bool check = false, prune = false;
  bool json = false;
};

std::string day_of(std::int64_t seconds) {
  const std::time_t time = seconds;
  std::tm parts{};
  ::gmtime_r(&time, &parts);
  return fmt::format("{:04}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday);
}

nlohmann::ordered_json as_json(const TokenCacheEntry& entry) {
  return {{"source", entry.source},       {"tokenizer", entry.tokenizer}, {"prefix", entry.prefix},
          {"documents", entry.documents}, {"tokens", entry.tokens},       {"bytes", entry.bytes},
          {"last_used", entry.last_used}, {"in_use", entry.in_use}};
}

std::string as_text(const std::vector<TokenCacheEntry>& entries, const std::string& what) {
  std::uint64_t bytes = 0;
  std::string text;
  for (const auto& entry : entries) {
    bytes += entry.bytes;
    text += fmt::format("{}  {:>9}  {:>15} tokens  {}{}  {}\n", day_of(entry.last_used), format_bytes(entry.bytes),
                        report::with_commas(entry.tokens), printable(entry.source), entry.in_use ? " (in use)" : "",
                        printable(entry.tokenizer));
  }
  return text + fmt::format("{}: {}, {}\n", what, report::counted(static_cast<std::int64_t>(entries.size()), "text"),
                            format_bytes(bytes));
}

int run_cache(const CacheCommandArguments& arguments) {
  CacheFolder cache(token_cache_folder_or_fail(arguments.cache.dir));
  const auto limit = parse_bytes("--cache-size", arguments.cache.size);
  if (limit && !arguments.prune) throw InvalidArgument("--cache-size says what --prune leaves: give --prune too");
  if (arguments.prune && !limit) {
    throw InvalidArgument("--prune needs --cache-size, the size to leave, such as 200GB; 0 leaves only what is in use");
  }
  const auto entries = arguments.prune ? cache.prune(*limit) : cache.entries();
  int damaged = 0;
  for (const auto& entry : entries) {
    if (!arguments.check) break;
    try {
      cache.check(entry.prefix);
    } catch (const SourceError& error) {
      print_error(error.what());
      ++damaged;
    }
  }
  if (arguments.json) {
    auto list = nlohmann::ordered_json::array();
    for (const auto& entry : entries) list.push_back(as_json(entry));
    print(json_text(nlohmann::ordered_json{{"dir", cache.dir()}, {arguments.prune ? "removed" : "texts", list}}) +
          "\n");
  } else {
    print(as_text(entries, arguments.prune ? "removed from " + printable(cache.dir()) : printable(cache.dir())));
  }
  return damaged == 0 ? 0 : 1;
}

}  // namespace

void add_cache(CLI::App& app, Invocation& invocation) {
  auto arguments = std::make_shared<CacheCommandArguments>();
  auto* command = app.add_subcommand("cache", "List the texts whose tokens are kept, check them or remove them");
  auto* check = command->add_flag("--check", arguments->check, "Read all of them, and fail where one is damaged");
  command->add_flag("--prune", arguments->prune, "Evict least recently used entries down to --cache-size; none in use")
      ->excludes(check);
  add_cache_options(*command, arguments->cache);
  command->add_flag("--json", arguments->json, "Print one JSON object");
  command->footer("Example: at most 200 GB\n  levada cache --prune --cache-size 200GB");
  command->callback([arguments, &invocation] { invocation.action = [arguments] { return run_cache(*arguments); }; });
}

}  // namespace levada::cli
