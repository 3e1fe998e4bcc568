#include "levada/base/metric.h"

#include <gtest/gtest.h>

namespace levada {
namespace {

TEST(ToPrometheus, GroupsMetricsByName) {
  const std::vector<Metric> metrics = {
      {.name = "a_total", .help = "So many.", .labels = {{"rank", "0"}, {"stage", "a \"b\"\\c\nd"}}, .value = 3},
      {.name = "b", .help = "Now.", .type = Metric::Type::gauge, .labels = {}, .value = 0.25},
      {.name = "a_total", .help = "So many.", .labels = {{"rank", "1"}}, .value = 9007199254740991},
  };
  EXPECT_EQ(to_prometheus(metrics),
            "# HELP a_total So many.\n"
            "# TYPE a_total counter\n"
            "a_total{rank=\"0\",stage=\"a \\\"b\\\"\\\\c\\nd\"} 3\n"
            "a_total{rank=\"1\"} 9007199254740991\n"
            "# HELP b Now.\n"
            "# TYPE b gauge\n"
            "b 0.25\n");
  EXPECT_EQ(to_prometheus({}), "");
}

}  // namespace
}  // namespace levada
