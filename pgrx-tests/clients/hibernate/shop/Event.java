package shop;

import jakarta.persistence.*;

/** Its key is the column's default. */
@Entity
@Table(name = "events")
public class Event {
    @Id
    @GeneratedValue(strategy = GenerationType.IDENTITY)
    public Long id;

    public String what;

    public Event() {}

    public Event(String what) {
        this.what = what;
    }
}
