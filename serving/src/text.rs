//! Texts for callers: names of the request that an error repeats, and errors. A request may be
//! large, and the answer that refuses it is small.

use std::borrow::Cow;

use zillion_feature::RequestError;

use crate::error::ServeError;

/// The largest number of characters of a text of the client that an error repeats.
const MOST_SHOWN: usize = 100;

/// The largest number of characters of an error in an answer. The status of a gRPC call is a
/// header, and clients take headers of 8 KiB.
const MOST_OF_ERROR: usize = 1000;

/// Cuts a text of the client for an error.
pub(crate) fn shorten(text: &str) -> Cow<'_, str> {
    cut(text, MOST_SHOWN)
}

/// Returns the text of an error for the caller. A failure of the model itself stands in the log
/// only, because its reason may name files of the server.
pub(crate) fn error_text(error: &ServeError) -> String {
    match error {
        ServeError::Scoring(_) => {
            "the model could not score the request; the log of the server has the reason".to_owned()
        }
        ServeError::Input(error) => {
            let input = shorten(&error.input).into_owned();
            let error = RequestError { input, row: error.row, reason: error.reason.clone() };
            cut(&error.to_string(), MOST_OF_ERROR).into_owned()
        }
        other => cut(&other.to_string(), MOST_OF_ERROR).into_owned(),
    }
}

/// Cuts a text to a number of characters. A sign at the end shows that it was cut.
fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}\u{2026}", &text[..end])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shorten("user"), "user");
        let long = "\u{e9}".repeat(1 << 20);
        assert_eq!(shorten(&long), format!("{}\u{2026}", "\u{e9}".repeat(100)));
        let error = ServeError::Malformed(long.clone());
        assert_eq!(error_text(&error).chars().count(), 1001);
        let error = RequestError { input: long, row: Some(7), reason: "it is large".to_owned() };
        let text = error_text(&ServeError::Input(error));
        assert!(text.chars().count() < 200 && text.contains("it is large"), "{text}");
    }

    #[test]
    fn a_failure_of_the_model_has_no_detail() {
        let failure = zillion_scorer::Error::Refused("/srv/cache/part.arrow is missing".to_owned());
        let text = error_text(&ServeError::Scoring(failure));
        assert!(text.contains("could not score") && !text.contains("/srv"), "{text}");
    }
}
