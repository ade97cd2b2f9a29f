package shop;

import java.lang.annotation.*;
import org.hibernate.annotations.IdGeneratorType;

/** A key with ids of a tag, taken in blocks. */
@IdGeneratorType(LeafIds.class)
@Retention(RetentionPolicy.RUNTIME)
@Target({ElementType.FIELD, ElementType.METHOD})
public @interface LeafId {
    String tag();

    int block() default 50;
}
