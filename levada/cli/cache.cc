#include <fmt/format.h>

#include <chrono>
#include <ctime>

#include "levada/base/bytes.h"
#include "levada/base/deadline.h"
#include "levada/base/error.h"
#include "levada/base/json.h"
#include "levada/base/text.h"
#include "levada/cli/command.h"
#include "levada/cli/error_reporter.h"
#include "levada/cli/file_list.h"
#include "levada/cli/help.h"
#include "levada/cli/text_options.h"
#include "levada/corpus/fill_cache.h"
#include "levada/report/numbers.h"
#include "levada/tokens/token_cache.h"

namespace levada::cli {
namespace {

struct CacheCommandArguments {
  CacheArguments cache;
  bool check = false, prune = false, fill = false;
  bool json = false;
  // Inputs of `fill`.
  std::vector<std::string> paths;
  std::vector<std::string> files_from;
  TextArguments text;
  std::string chat_template;
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

std::string as_json(const FilledCache& filled, double seconds) {
  nlohmann::ordered_json json = {{"dir", filled.dir},
                                 {"texts", filled.texts},
                                 {"tokenized", filled.made},
                                 {"bytes_read", filled.bytes_read},
                                 {"skipped_lines", filled.bad_lines.count},
                                 {"skipped_places", filled.bad_lines.first},
                                 {"seconds", seconds}};
  json["files_left_out"] = nlohmann::ordered_json::object();
  for (const auto& [end, count] : filled.left_out) json["files_left_out"][end] = count;
  return json_text(json) + "\n";
}

std::string as_text(const FilledCache& filled, double seconds) {
  if (filled.texts == 0) return "none of these files is text\n";
  auto text = fmt::format("{}: {}", printable(filled.dir), report::counted(filled.texts, "text"));
  if (filled.made > 0) {
    text += fmt::format(", {} tokenized here, {} in {}", filled.made, format_bytes(filled.bytes_read),
                        report::format_seconds(seconds));
  }
  if (filled.bad_lines.count > 0)
    text += ", left out " + report::bad_lines_sentence(filled.bad_lines.count, filled.bad_lines.first);
  return text + "\n";
}

int run_fill(const CacheCommandArguments& arguments, const Extensions& extensions) {
  auto paths = arguments.paths;
  append_file_lists(paths, arguments.files_from);
  if (paths.empty()) throw InvalidArgument("--fill needs a PATH: name the files to tokenize");
  report::ProgressLine line("tokenizing");
  auto options = corpus_options_of(arguments.text, arguments.chat_template, arguments.cache, extensions);
  options.progress = shown_by(line);
  const auto start = Clock::now();
  const auto filled = fill_cache(paths, options);
  const double seconds = seconds_since(start);
  line.clear();
  print(arguments.json ? as_json(filled, seconds) : as_text(filled, seconds));
  return 0;
}

int run_cache(const CacheCommandArguments& arguments, const Extensions& extensions) {
  if (arguments.fill) return run_fill(arguments, extensions);
  if (!arguments.paths.empty() || !arguments.files_from.empty()) {
    throw InvalidArgument(fmt::format("{} requires --fill, which tokenizes the named files",
                                      printable(arguments.paths.empty() ? "--files-from" : arguments.paths.front())));
  }
  CacheFolder cache(token_cache_folder_or_fail(arguments.cache.dir));
  const auto limit = parse_bytes("--cache-size", arguments.cache.size);
  if (limit && !arguments.prune) throw InvalidArgument("--cache-size requires --prune or --fill");
  if (arguments.prune && !limit) {
    throw InvalidArgument(
        "--prune requires --cache-size, the size to keep, such as 200GB; 0 keeps only entries in use");
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
  auto* command = app.add_subcommand("cache", "List, check, prune or fill the cache of tokenized texts");
  auto* check = command->add_flag("--check", arguments->check, "Verify all entries; fail if one is damaged");
  auto* prune = command
                    ->add_flag("--prune", arguments->prune,
                               "Evict the least recently used entries, but none in use, down to --cache-size")
                    ->excludes(check);
  auto* fill = command->add_flag("--fill", arguments->fill, "Tokenize the texts among PATH that are not cached yet")
                   ->excludes(check)
                   ->excludes(prune);
  command->add_option("PATH", arguments->paths, "For --fill: files, folders, patterns or mix.json, as for feed")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  add_files_from(*command, arguments->files_from);
  add_text_options(*command, arguments->text);
  add_chat_template(*command, arguments->chat_template);
  for (const auto* name :
       {"--tokenizer", "--special-tokens", "--eod", "--text-field", "--skip-bad", "--chat-template"}) {
    command->get_option(name)->needs(fill);
  }
  add_cache_options(*command, arguments->cache);
  command->add_flag("--json", arguments->json, "One JSON object on standard output");
  show_first(*command, {"--check", "--prune", "--fill", "--cache-size", "--tokenizer", "--json"});
  command->footer(
      "Example: shrink the cache to 200 GB\n  levada cache --prune --cache-size 200GB\n"
      "Example: fill the cache from all processes of a job; one of them tokenizes each text\n"
      "  mpirun -n 8 levada cache --fill corpus --tokenizer tokenizer.model");
  command->callback([arguments, &invocation] {
    invocation.action = [arguments, &invocation] { return run_cache(*arguments, invocation.extensions); };
  });
}

}  // namespace levada::cli
