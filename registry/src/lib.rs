//! The one inference path: graph + rows + batch -> scores.
