//! What the cluster prints. Nobody may read it any more (`kemudi up | head`): an error of writing is no reason to end, and the
//! macros of the standard library panic then.

use std::fmt::Arguments;
use std::io::Write;

pub fn line(mut to: impl Write, text: Arguments<'_>) {
    let _ = writeln!(to, "{text}").and_then(|()| to.flush());
}

/// `println!`, whoever reads it.
macro_rules! say {
    ($($text:tt)*) => { $crate::output::line(std::io::stdout(), format_args!($($text)*)) };
}

/// `eprintln!`, whoever reads it.
macro_rules! note {
    ($($text:tt)*) => { $crate::output::line(std::io::stderr(), format_args!($($text)*)) };
}

pub(crate) use {note, say};

#[cfg(test)]
mod tests {
    /// A pipe whose reader has gone.
    #[test]
    fn output_without_a_reader_is_dropped() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        super::line(&writer, format_args!("a {}", 1));
        let (mut reader, writer) = std::io::pipe().unwrap();
        super::line(&writer, format_args!("a {}", 1));
        drop(writer);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut reader, &mut text).unwrap();
        assert_eq!(text, "a 1\n");
    }
}
