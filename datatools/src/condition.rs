//! Conditions on the columns of a row, such as `clicks >= 1 and country = 'DE'`.
//!
//! A condition is parsed from text and evaluated on record batches. A comparison with a missing
//! value is neither true nor false, as in SQL, and `and`, `or` and `not` follow the rules of SQL
//! for three values.

mod evaluate;
mod parse;
mod texts;

use std::fmt;
use std::str::FromStr;

use zillion_feature::DateOrder;

/// A condition on the columns of a row.
///
/// ```
/// use zillion_datatools::Condition;
///
/// let condition: Condition = "clicks >= 1 and country in ('DE', 'AT')".parse()?;
/// assert_eq!(condition.columns(), ["clicks", "country"]);
/// assert!("clicks >=".parse::<Condition>().is_err());
/// # Ok::<(), String>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Condition {
    text: String,
    root: Node,
    /// The order of day and month in texts with dates that need one.
    date_order: Option<DateOrder>,
}

/// A part of a condition.
#[derive(Clone, Debug, PartialEq)]
enum Node {
    All(Vec<Node>),
    Any(Vec<Node>),
    Not(Box<Node>),
    /// The comparison of a column with a value.
    Compare(String, Comparison, Literal),
    /// Whether the value of a column is one of the values.
    OneOf(String, Vec<Literal>),
    /// Whether the value of a column is missing.
    IsNull(String),
    /// Whether the value of a column is 1 or true. Other values than those of a label are an error.
    IsOne(String),
}

/// A comparison of two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A value in the text of a condition.
#[derive(Clone, Debug, PartialEq)]
enum Literal {
    Whole(i128),
    Number(f64),
    Boolean(bool),
    Text(String),
}

impl Condition {
    /// Returns the condition that a column, whose values are 1, 0 and -1 or true and false, has 1
    /// or true.
    pub fn is_one(column: &str) -> Self {
        let root = Node::IsOne(column.to_owned());
        Self { text: format!("{column} = 1"), root, date_order: None }
    }

    /// Returns the condition with the order of day and month in texts with dates that need one.
    pub fn with_date_order(self, date_order: Option<DateOrder>) -> Self {
        Self { date_order, ..self }
    }

    /// Returns the names of the columns in the order of the text. A name may occur twice.
    pub fn columns(&self) -> Vec<&str> {
        fn add<'a>(node: &'a Node, names: &mut Vec<&'a str>) {
            match node {
                Node::All(parts) | Node::Any(parts) => parts.iter().for_each(|n| add(n, names)),
                Node::Not(part) => add(part, names),
                Node::Compare(name, ..)
                | Node::OneOf(name, _)
                | Node::IsNull(name)
                | Node::IsOne(name) => {
                    names.push(name);
                }
            }
        }
        let mut names = Vec::new();
        add(&self.root, &mut names);
        names
    }
}

impl FromStr for Condition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let root = parse::parse(text).map_err(|problem| {
            format!(
                "condition `{text}`: {problem}; write a condition such as \
                 clicks >= 1 and country = 'DE'"
            )
        })?;
        Ok(Self { text: text.to_owned(), root, date_order: None })
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole(whole) => write!(f, "{whole}"),
            Self::Number(number) => write!(f, "{number}"),
            Self::Boolean(boolean) => write!(f, "{boolean}"),
            Self::Text(text) => write!(f, "'{text}'"),
        }
    }
}
