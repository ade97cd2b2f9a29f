//! Expansion of `leaf_id.node_name`.
//!
//! The setting is a template, so that all servers of a cluster can share one configuration: `%h` is
//! the host name, `%p` the server's port, `%%` a percent sign.

use std::iter;

use crate::registry::LONGEST_NAME;

/// Digits of the largest port number.
const PORT_DIGITS: usize = 5;

enum Part {
    Char(char),
    Host,
    Port,
}

/// A valid template.
pub struct Template(Vec<Part>);

impl Template {
    /// Parses a setting. `None` if it contains an unknown escape or a control character, or is so
    /// long that no byte of the host name would fit.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut chars = text.chars();
        let parts = iter::from_fn(|| {
            let part = match chars.next()? {
                '%' => match chars.next() {
                    Some('h') => Some(Part::Host),
                    Some('p') => Some(Part::Port),
                    Some('%') => Some(Part::Char('%')),
                    _ => None,
                },
                char => (!char.is_control()).then_some(Part::Char(char)),
            };
            Some(part)
        });
        let template = Self(parts.collect::<Option<_>>()?);
        (template.length(1, PORT_DIGITS) <= LONGEST_NAME).then_some(template)
    }

    /// The node name: at most [`LONGEST_NAME`] bytes, without control characters. In the host name,
    /// spaces and bytes that are not printable ASCII become question marks; if it is too long, it
    /// is shortened.
    #[must_use]
    pub fn expand(&self, host: &[u8], port: u16) -> String {
        let port = port.to_string();
        let hosts = self.0.iter().filter(|part| matches!(part, Part::Host));
        let room = LONGEST_NAME.saturating_sub(self.length(0, port.len())) / hosts.count().max(1);
        let host: String = shortened(host, room)
            .iter()
            .map(|&byte| char::from(byte))
            .map(|char| if char.is_ascii_graphic() { char } else { '?' })
            .collect();
        let mut name = String::new();
        for part in &self.0 {
            match part {
                Part::Char(char) => name.push(*char),
                Part::Host => name.push_str(&host),
                Part::Port => name.push_str(&port),
            }
        }
        name
    }

    fn length(&self, host: usize, port: usize) -> usize {
        let lengths = self.0.iter().map(|part| match part {
            Part::Char(char) => char.len_utf8(),
            Part::Host => host,
            Part::Port => port,
        });
        lengths.sum()
    }
}

/// The distinctive part of a host name that is too long. Neighbors share the domain, and a
/// replica's number is at the end of the first label. So the domain is cut on the right, and a
/// label that is still too long on the left.
fn shortened(host: &[u8], room: usize) -> &[u8] {
    if host.len() <= room {
        return host;
    }
    let label = host.split(|&byte| byte == b'.').next().unwrap_or(host);
    match label.len().checked_sub(room) {
        None | Some(0) => host.get(..room),
        Some(excess) => label.get(excess..),
    }
    .unwrap_or(host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn expanded(text: &str, host: impl AsRef<[u8]>, port: u16) -> String {
        let Some(template) = Template::parse(text) else {
            panic!("{text} is refused");
        };
        let name = template.expand(host.as_ref(), port);
        assert!(name.len() <= LONGEST_NAME, "{name}");
        assert!(!name.contains(char::is_control), "{name}");
        name
    }

    #[test]
    fn escapes_are_expanded() {
        for (text, name) in [
            ("", ""),
            ("db3", "db3"),
            ("%h:%p", "pg-1:5432"),
            ("%%h", "%h"),
            ("%%%h%%", "%pg-1%"),
            ("é/%p%p", "é/54325432"),
        ] {
            assert_eq!(expanded(text, "pg-1", 5432), name);
        }
        assert_eq!(expanded("%h:%p", "", 1), ":1");
    }

    #[test]
    fn what_is_no_name_is_refused() {
        let long = "x".repeat(LONGEST_NAME);
        assert!(Template::parse(&long).is_some());
        assert!(Template::parse(&"%%".repeat(LONGEST_NAME)).is_some());
        for text in [
            "%",
            "a%",
            "%x",
            "%H",
            "%%%",
            "% h",
            "tab\t",
            "\u{85}",
            &format!("{long}x"),
            // No room for a byte of the host name, or for a port of five digits.
            &format!("{long}%h"),
            &format!("{}%p", &long[4..]),
        ] {
            assert!(Template::parse(text).is_none(), "{text:?}");
        }
        assert!(Template::parse(&format!("{}%p", &long[5..])).is_some());
    }

    #[test]
    fn of_a_long_host_name_what_differs_is_kept() {
        let domain = "some.where.with.a.very.long.domain.that.they.all.share.example";
        let names = ["pg-1", "pg-2"].map(|host| expanded("%h:%p", format!("{host}.{domain}"), 1));
        assert!(names[0].starts_with("pg-1.some.") && names[0].ends_with(":1"));
        assert_eq!(names[0].len(), LONGEST_NAME);
        assert_ne!(names[0], names[1]);

        let label = "l".repeat(70);
        let names = ["-1", "-2.example"].map(|end| expanded("%h:%p", label.clone() + end, 65535));
        assert!(names[0].ends_with("ll-1:65535") && names[1].ends_with("ll-2:65535"));
        assert_eq!(names[0].len(), LONGEST_NAME);

        // The room is divided between both.
        assert_eq!(expanded("%h %h", "a.b", 1), "a.b a.b");
        let name = expanded("%h %h", "l".repeat(70) + "-1", 1);
        assert_eq!(name.len(), 63);
        assert_eq!(name.matches("l-1").count(), 2);
        // A label that fits to the byte.
        let label = "l".repeat(61);
        assert_eq!(
            expanded("%h:%p", format!("{label}.x"), 1),
            format!("{label}:1")
        );
    }

    #[test]
    fn what_cannot_be_printed_becomes_a_question_mark() {
        assert_eq!(expanded("%h", b"a\n\xffb \x7f", 1), "a??b??");
    }
}
