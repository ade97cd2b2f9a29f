//! Enums with a number for shared memory and a text for views and answers, both generated from one
//! list of variants.

/// Defines an enum whose variants have a text and at most one field, an `i64`.
macro_rules! numbered {
    (
        $(#[$enum_doc:meta])*
        $enum:ident {
            $(
                $(#[$doc:meta])*
                $name:ident $({ $(#[$field_doc:meta])* $field:ident })? => $text:literal,
            )*
        }
    ) => {
        $(#[$enum_doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $enum {
            $(
                $(#[$doc])*
                $name $({
                    $(#[$field_doc])*
                    $field: i64,
                })?,
            )*
        }

        const _: () = {
            enum Number {
                $($name,)*
            }

            impl $enum {
                /// Text in views and answers.
                #[must_use]
                pub fn text(self) -> &'static str {
                    match self {
                        $(Self::$name $({ $field: _ })? => $text,)*
                    }
                }

                /// Encodes the variant for shared memory: its number, and its field or 0.
                #[must_use]
                pub fn encode(self) -> (u32, i64) {
                    match self {
                        $(Self::$name $({ $field })? => (
                            Number::$name as u32,
                            $crate::numbered::or_zero!($($field)?),
                        ),)*
                    }
                }

                /// Decodes the value in shared memory; `None` if the number is unknown.
                #[must_use]
                pub fn decode(number: u32, _field: i64) -> Option<Self> {
                    $(
                        if number == Number::$name as u32 {
                            return Some(Self::$name $({ $field: _field })?);
                        }
                    )*
                    None
                }
            }
        };
    };
}

macro_rules! or_zero {
    () => {
        0
    };
    ($field:ident) => {
        $field
    };
}

pub(crate) use {numbered, or_zero};
