#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "levada/base/bytes.h"
#include "levada/base/json.h"
#include "levada/base/text.h"
#include "levada/cli/command.h"
#include "levada/cli/data_summary.h"
#include "levada/cli/help.h"
#include "levada/cli/text_options.h"
#include "levada/report/numbers.h"
#include "levada/report/progress.h"

namespace levada::cli {
namespace {

constexpr std::size_t shown_lines = 12, shown_columns = 96;

struct InspectArguments {
  std::string path;
  TextArguments text;
  SummaryOptions options;
  bool json = false;
};

std::string format_name(const DataSummary& summary) {
  if (summary.format == "text") return "text";
  return summary.has_modes ? "Megatron-LM's .bin and .idx, with a mode for each sequence"
                           : "Megatron-LM's .bin and .idx";
}

std::string lengths_sentence(const report::LengthHistogram& lengths) {
  if (lengths.shortest() == lengths.longest()) {
    return fmt::format("{} per document", report::counted(lengths.longest(), "token"));
  }
  return fmt::format("{} to {} tokens per document, mean {}, median about {}", report::with_commas(lengths.shortest()),
                     report::with_commas(lengths.longest()), report::with_commas(std::llround(lengths.mean())),
                     report::with_commas(lengths.quantile(0.5)));
}

std::string facts(const DataSummary& summary, const std::string& tokenizer) {
  const bool is_text = summary.format == "text";
  std::string text;
  const auto add = [&](std::string_view name, const std::string& value) {
    text += report::fact(output_style(), name, 9, value);
  };
  add("format", format_name(summary));
  if (is_text) add("tokenizer", printable(tokenizer));
  add("dtype", summary.dtype.name());
  add("documents", report::with_commas(summary.documents));
  if (!is_text) add("sequences", report::with_commas(summary.sequences));
  add("tokens", report::with_commas(summary.tokens) + (is_text ? ", with one at the end of each document" : ""));
  add("bytes", format_bytes(summary.bytes));
  if (summary.bad_lines.count > 0)
    add("left out", report::bad_lines_sentence(summary.bad_lines.count, summary.bad_lines.first));
  if (summary.documents > 0) add("lengths", lengths_sentence(summary.lengths));
  return text;
}

/// Returns the characters of `text`, which is UTF-8, that fit on a line. Replaces characters that a terminal would
/// interpret with a middle dot.
std::string shown_line(std::string_view text) {
  std::string line;
  std::size_t columns = 0;
  for (std::size_t at = 0; at < text.size(); ++columns) {
    const auto lead = static_cast<unsigned char>(text[at]);
    const std::size_t size = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (columns + 1 == shown_columns && at + size < text.size()) return line + "…";
    const bool is_control =
        lead < 0x20 || lead == 0x7f || (lead == 0xc2 && static_cast<unsigned char>(text[at + 1]) < 0xa0);
    line += lead == '\t' ? "    " : is_control ? "·" : std::string(text.substr(at, size));
    at += size;
  }
  return line;
}

std::vector<std::string> text_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (lines.size() < shown_lines) {
    const auto end = std::min(text.find('\n'), text.size());
    auto line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    lines.push_back(shown_line(line));
    if (end + 1 >= text.size()) return lines;
    text.remove_prefix(end + 1);
  }
  lines.emplace_back("…");
  return lines;
}

std::vector<std::string> number_lines(const std::vector<std::string>& numbers, bool is_all) {
  std::vector<std::string> lines(1);
  for (const auto& number : numbers) {
    if (lines.back().size() + number.size() + 1 > shown_columns) {
      if (lines.size() == shown_lines) {
        lines.emplace_back("…");
        return lines;
      }
      lines.emplace_back();
    }
    lines.back() += (lines.back().empty() ? "" : " ") + number;
  }
  if (!is_all) lines.emplace_back("…");
  return lines;
}

std::string sample_text(const DocumentSample& sample) {
  const bool is_all = static_cast<std::int64_t>(sample.numbers.size()) == sample.tokens;
  auto text = fmt::format("  {}  {}\n", output_style().bold(fmt::format("document {}", sample.document)),
                          report::counted(sample.tokens, "token"));
  for (const auto& line : sample.is_text ? text_lines(sample.text) : number_lines(sample.numbers, is_all)) {
    text += line.empty() ? "  │\n" : fmt::format("  │ {}\n", line);
  }
  return text;
}

std::string as_text(const DataSummary& summary, const InspectArguments& arguments) {
  auto text = output_style().bold(printable(fmt::format("{}", fmt::join(summary.paths, ", ")))) + "\n\n";
  text += facts(summary, arguments.text.tokenizer) + "\n";
  if (summary.documents == 0) return text + "  It contains no documents.\n";
  return text + summary.lengths.to_string("documents", output_style(), "  ") + "\n" + sample_text(summary.sample);
}

nlohmann::ordered_json lengths_json(const report::LengthHistogram& lengths) {
  auto rows = nlohmann::ordered_json::array();
  for (const auto& row : lengths.rows(64)) {
    rows.push_back({{"from", row.from}, {"to", row.to}, {"documents", row.count}, {"tokens", row.total}});
  }
  return {{"shortest", lengths.shortest()},
          {"longest", lengths.longest()},
          {"mean", lengths.mean()},
          {"median", lengths.quantile(0.5)},
          {"histogram", rows}};
}

nlohmann::ordered_json sample_json(const DocumentSample& sample) {
  nlohmann::ordered_json json = {{"document", sample.document}, {"tokens", sample.tokens}};
  if (sample.is_text) {
    json["text"] = sample.text;
  } else {
    auto& numbers = json["token_ids"] = nlohmann::ordered_json::array();
    for (const auto& number : sample.numbers) {
      // JSON has no representation of NaN and infinities.
      if (number.find_first_of("ni") != number.npos) numbers.push_back(number);
      else numbers.push_back(nlohmann::ordered_json::parse(number));
    }
  }
  return json;
}

std::string as_json(const DataSummary& summary) {
  nlohmann::ordered_json json = {{"format", summary.format},
                                 {"paths", summary.paths},
                                 {"dtype", summary.dtype.name()},
                                 {"documents", summary.documents},
                                 {"sequences", summary.sequences},
                                 {"tokens", summary.tokens},
                                 {"bytes", summary.bytes},
                                 {"skipped_lines", summary.bad_lines.count},
                                 {"skipped_places", summary.bad_lines.first},
                                 {"modes", summary.has_modes},
                                 {"lengths", lengths_json(summary.lengths)}};
  json["sample"] = summary.documents == 0 ? nlohmann::ordered_json() : sample_json(summary.sample);
  return json_text(json) + "\n";
}

int run_inspect(InspectArguments arguments, const Extensions& extensions) {
  arguments.options.text = arguments.text.options;
  arguments.options.formats = extensions.formats;
  const TokenizerChoice choice{arguments.text.tokenizer, {}, arguments.text.special_tokens};
  arguments.options.tokenizer = is_text(arguments.path, extensions.formats) ? open_named_tokenizer(choice, extensions)
                                                                            : open_tokenizer(choice, extensions);
  const auto storage = open_storage(extensions);
  arguments.options.open = [&](const std::string& path) { return storage.open(path); };
  report::ProgressLine line("reading");
  arguments.options.progress = [&](std::uint64_t done, std::uint64_t in_all) {
    if (line.is_due()) line.update(done, in_all, fmt::format("{} of {}", format_bytes(done), format_bytes(in_all)));
  };
  const auto summary = summarise(arguments.path, arguments.options);
  line.clear();
  print(arguments.json ? as_json(summary) : as_text(summary, arguments));
  return 0;
}

}  // namespace

void add_inspect(CLI::App& app, Invocation& invocation) {
  auto arguments = std::make_shared<InspectArguments>();
  auto* command =
      app.add_subcommand("inspect", "Summarize a file of documents: their number, their lengths and one of them");
  command
      ->add_option("PATH", arguments->path,
                   "A .jsonl or .txt, plain or compressed (.gz, .zst), or .bin with .idx (by prefix)")
      ->required();
  add_option(*command, "--sample", arguments->options.sample, "N", "Document to show, from 0");
  add_text_options(*command, arguments->text);
  command->add_flag("--json", arguments->json, "One JSON object on standard output");
  show_first(*command, {"--sample", "--tokenizer", "--text-field", "--json"});
  command->footer("Example:\n  levada inspect corpus.jsonl --tokenizer bytes --sample 3");
  command->callback([arguments, &invocation] {
    invocation.action = [arguments, &invocation] { return run_inspect(*arguments, invocation.extensions); };
  });
}

}  // namespace levada::cli
