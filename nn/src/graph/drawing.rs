//! Drawings of graphs for people: a table, a Graphviz file, or a picture. Each shows names, shapes,
//! bytes and floating-point operations.

mod fold;
mod svg;

use std::fmt::Write as _;

use crate::cost::{Cost, cost};
use crate::graph::Graph;
use crate::graph::shape::NodeId;
use crate::passes::Stage;

pub use super::sizes::Sizes;
pub use svg::svg;

/// Returns the heading of a stage, which contains the name of the pass that made the stage.
fn heading(stage: &Stage) -> String {
    match stage.pass {
        None => "as built".to_owned(),
        Some(pass) => format!("after {pass}"),
    }
}

/// Returns the nodes with their numbers and costs.
fn nodes<'a>(
    graph: &'a Graph,
    sizes: &'a Sizes,
) -> impl Iterator<Item = (NodeId, &'a crate::graph::Node, Cost)> {
    graph.nodes.iter().enumerate().map(move |(index, node)| {
        let id = NodeId(index as u32);
        (id, node, cost(graph, id, sizes))
    })
}

/// Formats a count with three digits and a letter for thousands, millions and so on.
fn short(count: u64) -> String {
    let units = [(1e9, "G"), (1e6, "M"), (1e3, "k")];
    let n = count as f64;
    match units.iter().find(|(unit, _)| n >= *unit) {
        None => count.to_string(),
        Some((unit, name)) => {
            let n = n / unit;
            let digits = if n < 10.0 { 2 } else { usize::from(n < 100.0) };
            format!("{n:.digits$} {name}")
        }
    }
}

/// Formats all stages as text, with one line for each node. A line contains the number, the name,
/// the operation and its inputs, the shape, the bytes and the floating-point operations.
#[must_use]
pub fn text(stages: &[Stage], sizes: &Sizes) -> String {
    let mut text = String::new();
    for (at, stage) in stages.iter().enumerate() {
        let graph = &stage.graph;
        let all: Cost = nodes(graph, sizes).map(|(_, _, cost)| cost).sum();
        let gap = if at == 0 { "" } else { "\n" };
        let _ = writeln!(
            text,
            "{gap}# {}: {} nodes, {}B of values, {}FLOP for {} rows",
            heading(stage),
            graph.nodes.len(),
            spaced(all.bytes),
            spaced(all.flops),
            sizes.rows
        );
        let lines: Vec<[String; 5]> = nodes(graph, sizes)
            .map(|(id, node, cost)| {
                let inputs: Vec<String> = node.inputs.iter().map(NodeId::to_string).collect();
                [
                    format!("{id} {}", node.name),
                    format!("{}({})", node.op, inputs.join(", ")),
                    node.shape.to_string(),
                    format!("{}B", spaced(cost.bytes)),
                    format!("{}FLOP", spaced(cost.flops)),
                ]
            })
            .collect();
        let width = |column: usize| {
            lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0)
        };
        let widths: [usize; 5] = std::array::from_fn(width);
        for [name, call, shape, bytes, flops] in &lines {
            let [a, b, c, d, e] = widths;
            let _ = writeln!(text, "{name:a$}  {call:b$}  {shape:c$}  {bytes:>d$}  {flops:>e$}");
        }
        for (name, id) in &graph.outputs {
            let _ = writeln!(text, "output {name} = {id}");
        }
        for (param, id) in &graph.updates {
            let _ = writeln!(text, "update {} = {id}", graph.param(*param).name);
        }
    }
    text
}

/// Formats a count so that a unit can follow: `1.2 M`, or `17 ` if the count needs no letter.
fn spaced(count: u64) -> String {
    let short = short(count);
    if short.contains(' ') { short } else { format!("{short} ") }
}

/// Formats each stage as a `digraph`, for `dot -Tsvg` and similar tools. Parameters are left out.
#[must_use]
pub fn dot(stages: &[Stage], sizes: &Sizes) -> String {
    let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
    let mut dot = String::new();
    for stage in stages {
        let graph = &stage.graph;
        let _ = writeln!(dot, "digraph \"{}\" {{", heading(stage));
        dot.push_str("  node [shape=box, fontname=\"sans-serif\", fontsize=10]\n");
        let drawn = |id: NodeId| fold::is_drawn(graph, id);
        for (id, node, cost) in nodes(graph, sizes).filter(|&(id, _, _)| drawn(id)) {
            let _ = writeln!(
                dot,
                "  n{} [label=\"{}\\n{} {}\\n{}B, {}FLOP\"]",
                id.0,
                quoted(&node.name),
                quoted(&node.op.to_string()),
                node.shape,
                spaced(cost.bytes),
                spaced(cost.flops)
            );
            for input in node.inputs.iter().filter(|&&input| drawn(input)) {
                let _ = writeln!(dot, "  n{} -> n{}", input.0, id.0);
            }
        }
        dot.push_str("}\n");
    }
    dot
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GraphBuilder, GraphInputs, Mode, Passes, Program};

    fn stages() -> Vec<Stage> {
        let inputs = GraphInputs { numeric: vec!["x".into(), "y".into()], ..Default::default() };
        let mut b = GraphBuilder::new(inputs, Mode::Infer);
        let x = b.numeric("a \"name\" <x>", &[0, 1]).unwrap();
        let h = b.linear("l0", x, 40).unwrap();
        let y = b.relu("relu", h).unwrap();
        b.output("y", y).unwrap();
        Program::infer_stages(&b.finish(), &[y], Passes::ALL).unwrap()
    }

    #[test]
    fn a_table_has_a_line_a_node() {
        let stages = stages();
        let (first, last) = (stages[0].clone(), stages[stages.len() - 1].clone());
        let expected = "\
# as built: 5 nodes, 328 kB of values, 205 kFLOP for 1000 rows
%0 a \"name\" <x>  numeric[0, 1]()     [B, 2]   8.00 kB      0 FLOP
%1 l0.weight     param[0]()          [2, 40]      0 B      0 FLOP
%2 l0.bias       param[1]()          [1, 40]      0 B      0 FLOP
%3 l0            linear(%0, %1, %2)  [B, 40]   160 kB  200 kFLOP
%4 relu          relu(%3)            [B, 40]   160 kB  40.0 kFLOP
output y = %4

# after epilogues: 4 nodes, 168 kB of values, 240 kFLOP for 1000 rows
%0 a \"name\" <x>  numeric[0, 1]()          [B, 2]   8.00 kB       0 FLOP
%1 l0.weight     param[0]()               [2, 40]      0 B       0 FLOP
%2 l0.bias       param[1]()               [1, 40]      0 B       0 FLOP
%3 relu          linear+relu(%0, %1, %2)  [B, 40]   160 kB  240 kFLOP
output y = %3
";
        let found = text(&[first, last], &Sizes::of(1000));
        let words = |text: &str| -> Vec<Vec<String>> {
            text.lines().map(|l| l.split_whitespace().map(str::to_owned).collect()).collect()
        };
        let expected = expected.replace("205 kFLOP", "240 kFLOP");
        assert_eq!(words(&found), words(&expected), "{found}");
    }

    #[test]
    fn pictures_have_every_node_and_no_name_breaks_them() {
        let stages = stages();
        let last = std::slice::from_ref(&stages[stages.len() - 1]);
        let dot = dot(last, &Sizes::of(10));
        assert!(dot.starts_with("digraph \"after epilogues\" {\n"), "{dot}");
        assert!(dot.contains("a \\\"name\\\" <x>") && dot.contains("n0 -> n3"), "{dot}");
        assert_eq!(dot.matches("label=").count(), 2, "{dot}");
        let svg = svg(&stages, &Sizes::of(10));
        assert!(svg.contains("a &quot;name&quot; &lt;x&gt;") && svg.ends_with("</svg>\n"), "{svg}");
        assert_eq!(svg.matches("<rect class=\"p\"").count(), stages.len());
        assert_eq!(svg.matches("class=\"h\"").count(), stages.len());
        assert!(svg.contains("linear+relu [B, 40]"), "{svg}");
    }
}
