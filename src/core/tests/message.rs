//! Would catch: texts of users that are copied into errors at any length, or cut within a character.

use leaf_id_core::message::shown;

#[test]
fn long_texts_are_cut() {
    assert_eq!(shown(&[b'x'; 500]), "x".repeat(500));
    assert_eq!(shown(&[b'x'; 501]), "x".repeat(500) + "...");
    assert_eq!(
        shown(&"ä".repeat(1000).into_bytes()),
        "ä".repeat(250) + "..."
    );
    assert_eq!(shown("€".repeat(1000).as_bytes()), "€".repeat(166) + "...");
    assert_eq!(shown(b"\xe4\xff"), "??");
    assert_eq!(shown("a\x1b[2J\r\nb\u{9b}".as_bytes()), "a?[2J??b?");
    // What is no UTF-8 may have no end of a character at all.
    assert_eq!(shown(&[0x80; 1000]), "...");
}
