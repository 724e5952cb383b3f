//! The parser of conditions.
//!
//! ```text
//! any        = all { "or" all }
//! all        = part { "and" part }
//! part       = "not" part | "(" any ")" | column test
//! test       = comparison value | ["not"] "in" "(" value { "," value } ")" | "is" ["not"] "null"
//! comparison = "=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">="
//! value      = number | 'text' | "true" | "false"
//! ```
//!
//! A column is a name, or any text between double quotes. Two quotes inside a quoted text stand for
//! one. Words such as `and` may be in capital letters.

use super::{Comparison, Literal, Node};

/// The maximum number of parentheses and `not` around a part. The parser calls itself for each.
const DEPTH: usize = 50;

/// A word or a sign of a condition.
#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// A name without quotes, which may be a word of the language.
    Name(String),
    /// A name between double quotes.
    Quoted(String),
    Literal(Literal),
    Compare(Comparison),
    Open,
    Close,
    Comma,
}

type Parsed<T> = Result<T, String>;

/// Parses a condition. The error describes the problem.
pub(super) fn parse(text: &str) -> Parsed<Node> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0 };
    let node = parser.any(0)?;
    match parser.next() {
        None => Ok(node),
        Some(token) => Err(format!("{} stands after its end", describe(Some(&token)))),
    }
}

fn tokens(text: &str) -> Parsed<Vec<Token>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let (token, behind) = match first {
            c if c.is_whitespace() => {
                rest = rest.trim_start();
                continue;
            }
            '(' => (Token::Open, &rest[1..]),
            ')' => (Token::Close, &rest[1..]),
            ',' => (Token::Comma, &rest[1..]),
            '\'' => {
                let (quoted, behind) = quoted(rest, '\'')?;
                (Token::Literal(Literal::Text(quoted)), behind)
            }
            '"' => {
                let (quoted, behind) = quoted(rest, '"')?;
                (Token::Quoted(quoted), behind)
            }
            '=' | '!' | '<' | '>' => {
                let known = [
                    ("==", Comparison::Equal),
                    ("!=", Comparison::NotEqual),
                    ("<>", Comparison::NotEqual),
                    ("<=", Comparison::LessOrEqual),
                    (">=", Comparison::GreaterOrEqual),
                    ("=", Comparison::Equal),
                    ("<", Comparison::Less),
                    (">", Comparison::Greater),
                ];
                let found = known.iter().find(|(sign, _)| rest.starts_with(sign));
                let (sign, comparison) = found.ok_or("`!` needs a `=` behind it")?;
                (Token::Compare(*comparison), &rest[sign.len()..])
            }
            c if is_of_word(c) || c == '+' => {
                let end = rest[c.len_utf8()..].find(|c| !is_of_word(c) && c != '+');
                let (word, behind) = rest.split_at(end.map_or(rest.len(), |at| at + c.len_utf8()));
                (word_token(word)?, behind)
            }
            other => return Err(format!("`{other}` has no meaning here")),
        };
        tokens.push(token);
        rest = behind;
    }
    Ok(tokens)
}

/// Returns whether a character belongs to names and numbers.
fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '.' | '-')
}

/// Returns the token of a word, which is a number or a name.
fn word_token(word: &str) -> Parsed<Token> {
    if !word.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')) {
        return Ok(Token::Name(word.to_owned()));
    }
    if let Ok(whole) = word.parse::<i128>() {
        return Ok(Token::Literal(Literal::Whole(whole)));
    }
    match word.parse::<f64>() {
        Ok(number) if number.is_finite() => Ok(Token::Literal(Literal::Number(number))),
        _ => Err(format!(
            "`{word}` is no number; put a text between single quotes, and a name between double \
             quotes"
        )),
    }
}

/// Reads a text between quotes. Returns the text and the rest behind the second quote.
fn quoted(text: &str, quote: char) -> Parsed<(String, &str)> {
    let mut found = String::new();
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        if c != quote {
            found.push(c);
        } else if chars.next_if(|(_, next)| *next == quote).is_some() {
            found.push(quote);
        } else {
            return Ok((found, &text[at + quote.len_utf8()..]));
        }
    }
    Err(format!("the text {text} has no second quote"))
}

fn describe(token: Option<&Token>) -> String {
    match token {
        None => "the end of the text".to_owned(),
        Some(Token::Name(name) | Token::Quoted(name)) => format!("`{name}`"),
        Some(Token::Literal(literal)) => format!("`{literal}`"),
        Some(Token::Compare(_)) => "a comparison".to_owned(),
        Some(Token::Open) => "`(`".to_owned(),
        Some(Token::Close) => "`)`".to_owned(),
        Some(Token::Comma) => "`,`".to_owned(),
    }
}

struct Parser {
    tokens: Vec<Token>,
    at: usize,
}

impl Parser {
    fn next(&mut self) -> Option<Token> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token
    }

    /// Takes the next token if it is the word `word`, in small or capital letters.
    fn take_word(&mut self, word: &str) -> bool {
        let is_word = matches!(
            self.tokens.get(self.at),
            Some(Token::Name(name)) if name.eq_ignore_ascii_case(word)
        );
        self.at += usize::from(is_word);
        is_word
    }

    fn expect(&mut self, wanted: &Token, place: &str) -> Parsed<()> {
        match self.next() {
            Some(token) if token == *wanted => Ok(()),
            other => Err(format!(
                "{} stands where {} is needed {place}",
                describe(other.as_ref()),
                describe(Some(wanted))
            )),
        }
    }

    fn any(&mut self, depth: usize) -> Parsed<Node> {
        let mut parts = vec![self.all(depth)?];
        while self.take_word("or") {
            parts.push(self.all(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::Any(parts) })
    }

    fn all(&mut self, depth: usize) -> Parsed<Node> {
        let mut parts = vec![self.part(depth)?];
        while self.take_word("and") {
            parts.push(self.part(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Node::All(parts) })
    }

    fn part(&mut self, depth: usize) -> Parsed<Node> {
        if depth > DEPTH {
            return Err(format!("more than {DEPTH} parentheses or `not` are nested"));
        }
        if self.take_word("not") {
            return Ok(Node::Not(Box::new(self.part(depth + 1)?)));
        }
        match self.next() {
            Some(Token::Open) => {
                let node = self.any(depth + 1)?;
                self.expect(&Token::Close, "at the end of the parentheses")?;
                Ok(node)
            }
            Some(Token::Name(column) | Token::Quoted(column)) => self.test(column),
            other => Err(format!(
                "{} stands where the name of a column is needed",
                describe(other.as_ref())
            )),
        }
    }

    fn test(&mut self, column: String) -> Parsed<Node> {
        if self.take_word("is") {
            let is_not = self.take_word("not");
            if !self.take_word("null") {
                return Err(format!("`null` is needed behind `{column} is`"));
            }
            let node = Node::IsNull(column);
            return Ok(if is_not { Node::Not(Box::new(node)) } else { node });
        }
        let is_not = self.take_word("not");
        if self.take_word("in") {
            self.expect(&Token::Open, "behind `in`")?;
            let mut values = vec![self.value(&column)?];
            loop {
                match self.next() {
                    Some(Token::Comma) => values.push(self.value(&column)?),
                    Some(Token::Close) => break,
                    other => {
                        let found = describe(other.as_ref());
                        return Err(format!("{found} stands where `,` or `)` is needed"));
                    }
                }
            }
            let node = Node::OneOf(column, values);
            return Ok(if is_not { Node::Not(Box::new(node)) } else { node });
        }
        match self.next() {
            Some(Token::Compare(comparison)) if !is_not => {
                let value = self.value(&column)?;
                Ok(Node::Compare(column, comparison, value))
            }
            other => Err(format!(
                "{} stands where a comparison is needed behind `{column}`",
                describe(other.as_ref())
            )),
        }
    }

    fn value(&mut self, column: &str) -> Parsed<Literal> {
        if self.take_word("true") {
            return Ok(Literal::Boolean(true));
        }
        if self.take_word("false") {
            return Ok(Literal::Boolean(false));
        }
        match self.next() {
            Some(Token::Literal(literal)) => Ok(literal),
            Some(Token::Name(name) | Token::Quoted(name)) => Err(format!(
                "column `{column}` is compared with `{name}`, but texts stand between single quotes"
            )),
            other => Err(format!(
                "{} stands where a value for column `{column}` is needed",
                describe(other.as_ref())
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Condition;
    use super::*;

    #[test]
    fn parts_bind_as_in_sql() {
        let one = |name: &str| Node::Compare(name.to_owned(), Comparison::Equal, Literal::Whole(1));
        let parsed = parse("a = 1 or b = 1 AND not c == 1").unwrap();
        let all = Node::All(vec![one("b"), Node::Not(Box::new(one("c")))]);
        assert_eq!(parsed, Node::Any(vec![one("a"), all]));
        let parsed = parse("(a=1 or b=1)and c=1").unwrap();
        assert_eq!(parsed, Node::All(vec![Node::Any(vec![one("a"), one("b")]), one("c")]));
    }

    #[test]
    fn values_have_the_type_of_their_text() {
        let text = |text: &str| Literal::Text(text.to_owned());
        let values = "(-3, 2.5, 1e3, 'it''s', true, 18446744073709551615)";
        let wanted = vec![
            Literal::Whole(-3),
            Literal::Number(2.5),
            Literal::Number(1000.0),
            text("it's"),
            Literal::Boolean(true),
            Literal::Whole(u64::MAX.into()),
        ];
        let parsed = parse(&format!("\"my \"\"column\" not in {values}")).unwrap();
        let one_of = Node::OneOf("my \"column".to_owned(), wanted);
        assert_eq!(parsed, Node::Not(Box::new(one_of)));
        assert_eq!(parse("x is null").unwrap(), Node::IsNull("x".to_owned()));
    }

    #[test]
    fn wrong_conditions_are_refused() {
        let deep = format!("{}a = 1{}", "(".repeat(200), ")".repeat(200));
        for (text, problem) in [
            ("", "the name of a column"),
            ("clicks >=", "a value for column `clicks`"),
            ("clicks", "a comparison is needed"),
            ("country = DE", "single quotes"),
            ("country = 'DE", "no second quote"),
            ("a = 1 b = 2", "after its end"),
            ("a ! 1", "`=` behind"),
            ("a = 12x", "no number"),
            ("a = 1e999", "no number"),
            ("a in ()", "a value for column `a`"),
            ("a in (1 2)", "`,` or `)`"),
            ("(a = 1", "parentheses"),
            ("a is 1", "`null` is needed"),
            ("a # 1", "no meaning"),
            (&deep, "nested"),
        ] {
            let error = text.parse::<Condition>().unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
            assert!(error.contains("such as clicks >= 1"), "{error}");
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_the_parser_panic(text in "[ab0-9 ='\"()<>!,.é+-]{0,40}|\\PC{0,40}") {
            let _outcome = text.parse::<Condition>();
        }

        #[test]
        fn random_words_never_panic(words in prop::collection::vec(
            prop::sample::select(vec![
                "a", "not", "(", ")", "and", "or", "in", "is", "null", "=", "<", "1", "'x'", ",",
            ]),
            0..30,
        )) {
            let _outcome = words.join(" ").parse::<Condition>();
        }
    }
}
