//! Nothing but the end-to-end test binary lives here.
